package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.{Attribute, CreateNamedStruct, Expression, Literal, PythonUDF}
import org.apache.spark.sql.crosslane.libraries.{LaneFunction, Source}
import org.apache.spark.sql.types.StructType

/** Where an argument comes from: a column of the batch, or the results of an earlier step. */
private[crosslane] sealed trait Argument extends Serializable
private[crosslane] final case class Input(index: Int) extends Argument
private[crosslane] final case class Result(step: Int) extends Argument

/** @param aligned whether a function that is called with an iterator gives one result for each row */
private[crosslane] final case class Step(function: LaneFunction, arguments: Seq[Argument], aligned: Boolean = false)

/**
 * What becomes of each batch: the expressions whose values are its columns, and the uses of functions in an order in which the inner ones
 * come first.
 *
 * @param batchRows, batchBytes how much a batch has at most, if the functions could tell
 * @param isPySpark whether the functions are PySpark's, and so their errors
 */
private[crosslane] final case class Program(
    inputs: Seq[Expression],
    steps: Seq[Step],
    outputs: Seq[Int],
    batchRows: Option[Int] = None,
    batchBytes: Option[Long] = None,
    isPySpark: Boolean = false) {

  /** Whether the function is called once for a task, also if that has no rows. */
  def iterates: Boolean = steps.exists(_.function.description.iterates)

  /** For the native half; `libraries` has the address of each source's library. */
  def json(libraries: Map[Source, Long]): String = steps
    .map { case Step(function, arguments, aligned) =>
      val told = arguments.map {
        case Input(index) => s"""{"input":$index}"""
        case Result(step) => s"""{"result":$step}"""
      }
      s"""{"library":${libraries(function.source)},"function":${function.description.index},"arguments":[${told
          .mkString(",")}],"aligned":$aligned}"""
    }
    .mkString("[", ",", "]")
}

private[crosslane] object Program {

  /** For calls of scalar functions, some of which may have calls as arguments. The same argument travels once. */
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

  /** For a table function. */
  def apply(generator: LaneGenerator): Program = {
    val inputs = generator.children
    Program(inputs, Seq(Step(generator.function, inputs.indices.map(Input(_)))), Seq(0))
  }

  /** For a stream function, which takes a STRUCT of its input's columns. */
  def apply(function: LaneFunction, columns: Seq[Attribute]): Program =
    Program(Seq(struct(columns)), Seq(Step(function, Seq(Input(0)))), Seq(0))

  /** For a function that is called with an iterator of its arguments' batches, and gives one result for each row. */
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
