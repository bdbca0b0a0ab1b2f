package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.{Attribute, CreateNamedStruct, Expression, Literal, PythonUDF}
import org.apache.spark.sql.crosslane.libraries.{LaneFunction, Source}
import org.apache.spark.sql.types.StructType

/** The origin of an argument: a column of the batch, or the results of an earlier step. */
private[crosslane] sealed trait Argument extends Serializable
private[crosslane] final case class Input(index: Int) extends Argument
private[crosslane] final case class Result(step: Int) extends Argument

/**
 * @param aligned whether a function that is called with an iterator gives one result for each row
 */
private[crosslane] final case class Step(function: LaneFunction, arguments: Seq[Argument], aligned: Boolean = false)

/**
 * What happens with each batch: the expressions whose values are its columns, and the calls of
 * functions. Inner calls come first.
 *
 * @param batchRows, batchBytes the most rows and bytes of a batch, if functions depend on them
 * @param isPySpark whether the functions are PySpark's. Their errors are raised as PySpark's, too
 */
private[crosslane] final case class Program(
    inputs: Seq[Expression],
    steps: Seq[Step],
    outputs: Seq[Int],
    batchRows: Option[Int] = None,
    batchBytes: Option[Long] = None,
    isPySpark: Boolean = false) {

  /** Whether the function is called once for a task, even for one without rows. */
  def iterates: Boolean = steps.exists(_.function.description.iterates)

  /**
   * The program as JSON for the native half. `libraries` has the addresses of the sources'
   * libraries.
   */
  def json(libraries: Map[Source, Long]): String = steps
    .map { case Step(function, arguments, aligned) =>
      val described = arguments.map {
        case Input(index) => s"""{"input":$index}"""
        case Result(step) => s"""{"result":$step}"""
      }
      s"""{"library":${libraries(function.source)},"function":${function.description.index},"arguments":[${described
          .mkString(",")}],"aligned":$aligned}"""
    }
    .mkString("[", ",", "]")
}

private[crosslane] object Program {

  /**
   * A program for calls of scalar functions. Arguments may be calls. An argument that several calls
   * have is sent once.
   */
  def apply(functions: Seq[PythonUDF]): Program = {
    val inputs = new scala.collection.mutable.ArrayBuffer[Expression]
    val steps = new scala.collection.mutable.ArrayBuffer[Step]
    def input(expression: Expression): Input = {
      val known = inputs.indexWhere(_.semanticEquals(expression))
      if (known >= 0) Input(known) else { inputs += expression; Input(inputs.length - 1) }
    }
    def step(function: PythonUDF): Int = {
      val arguments = function.children.map {
        case inner: PythonUDF => Result(step(inner))
        case expression => input(expression)
      }
      steps += Step(function.func.asInstanceOf[LaneFunction], arguments)
      steps.length - 1
    }
    val outputs = functions.map(step)
    Program(inputs.toSeq, steps.toSeq, outputs)
  }

  /** A program for a table function. */
  def apply(generator: LaneGenerator): Program = {
    val inputs = generator.children
    Program(inputs, Seq(Step(generator.function, inputs.indices.map(Input(_)))), Seq(0))
  }

  /** A program for a stream function. It takes a STRUCT of its input's columns. */
  def apply(function: LaneFunction, columns: Seq[Attribute]): Program =
    Program(Seq(struct(columns)), Seq(Step(function, Seq(Input(0)))), Seq(0))

  /** A program for a function of an iterator of batches that gives one result for each row. */
  def aligned(function: PythonUDF): Program = {
    val names = function.func.asInstanceOf[LaneFunction].description.parameters.head.dataType.asInstanceOf[StructType].fieldNames
    val arguments = CreateNamedStruct(
      names.toSeq.zip(function.children).flatMap { case (name, child) => Seq(Literal(name), child) })
    Program(Seq(arguments), Seq(Step(function.func.asInstanceOf[LaneFunction], Seq(Input(0)), aligned = true)), Seq(0))
  }

  /** A STRUCT of columns. */
  def struct(columns: Seq[Attribute]): CreateNamedStruct =
    CreateNamedStruct(columns.flatMap(column => Seq(Literal(column.name), column)))
}
