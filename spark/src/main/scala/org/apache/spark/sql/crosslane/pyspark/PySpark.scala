package org.apache.spark.sql.crosslane
package pyspark

import dev.crosslane.spark.CrosslaneException
import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.network.util.JavaUtils
import org.apache.spark.sql.catalyst.expressions.{NamedArgumentExpression, PythonUDF}
import org.apache.spark.sql.crosslane.columns.SqlType
import org.apache.spark.sql.crosslane.libraries.{LaneFunction, Libraries, QueryFunctions}
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.execution.python.CrosslaneErrors
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.{JobArtifactSet, SparkEnv}
import scala.jdk.CollectionConverters._
import scala.util.Try

/**
 * PySpark's own functions over lanes. A worker gets what PySpark has pickled. There, the module `crosslane._engines.spark.declare` makes a function
 * that gives the same results as in a worker of Spark's. Spark itself evaluates functions that this module does not know.
 */
private[crosslane] object PySpark {
  private val Enabled = "spark.crosslane.pyspark.enabled"

  /** Settings of a query that change results of functions. */
  private val Relevant = Seq(
    "spark.sql.session.timeZone",
    "spark.sql.pyspark.udf.profiler",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pythonUDF.arrow.concurrency.level",
    "spark.sql.execution.pythonUDF.arrow.legacy.fallbackOnUDT",
    "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled",
    "spark.sql.execution.pyspark.binaryAsBytes",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled",
    "spark.sql.legacy.execution.pythonUDTF.pandas.conversion.enabled",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName")

  /** Names that a pickled function contains if it needs more than its arguments, and what it needs. */
  private val Needs = Seq(
    "_deserialize_accumulator" -> "it uses an accumulator",
    "BarrierTaskContext" -> "it uses the task's context",
    "TaskContext" -> "it uses the task's context")

  /** `SQL_SCALAR_ARROW_UDF`. Spark 4.0 does not have it. */
  private val ScalarArrow = 250

  /** `SQL_SCALAR_ARROW_ITER_UDF`. Spark 4.0 does not have it. */
  private val ScalarArrowIterator = 251

  /** The eval types that the module in the worker knows. Functions of other types get groups, windows or tables. */
  private val Kinds = Set(
    PythonEvalType.SQL_BATCHED_UDF,
    PythonEvalType.SQL_ARROW_BATCHED_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    ScalarArrow,
    ScalarArrowIterator)

  /** Whether a function of iterators has results of another one as arguments. */
  def isChainOfIterators(function: PythonUDF): Boolean =
    Set(PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, ScalarArrowIterator)(function.evalType) &&
      function.children.exists(_.isInstanceOf[PythonUDF])

  /** Whether Spark also checks the names of columns in batches. Before 4.2 there is no such setting. */
  def validatesSchemas: Boolean = Try(SQLConf.get.getConfString(ValidateSchema)).toOption.exists(_.trim.equalsIgnoreCase("true"))
  val ValidateSchema = "spark.sql.execution.arrow.pyspark.validateSchema.enabled"

  def isEnabled: Boolean =
    Try(SQLConf.get.getConfString(Enabled)).toOption
      .orElse(Option(SparkEnv.get).flatMap(_.conf.getOption(Enabled)))
      .exists(_.trim.equalsIgnoreCase("true"))

  /** The same program with the same batches as in Spark. Results of functions of columns may depend on them. */
  def withBatches(program: Program): Program = {
    val rows = SQLConf.get.arrowMaxRecordsPerBatch
    val bytes = Try(SQLConf.get.getConfString("spark.sql.execution.arrow.maxBytesPerBatch")).toOption
      .flatMap(text => Try(JavaUtils.byteStringAsBytes(text)).toOption)
    program.copy(
      batchRows = Some(if (rows > 0) rows else Int.MaxValue),
      batchBytes = Some(bytes.filter(_ > 0).getOrElse(Long.MaxValue / 2)),
      isPySpark = true)
  }

  /** The same calls over lanes, or the reason why Spark makes them itself. */
  def translated(functions: Seq[PythonUDF]): Either[String, Seq[PythonUDF]] = {
    val all = functions.flatMap(_.collect { case function: PythonUDF => function })
    all.flatMap(reasonAgainst).headOption match {
      case Some(reason) => Left(reason)
      case None => planned(functions, all)
    }
  }

  private def reasonAgainst(function: PythonUDF): Option[String] = {
    val (func, types) = (function.func, function.dataType +: function.children.map(_.dataType))
    lazy val command = new String(func.command.toArray, "ISO-8859-1")
    val why =
      if (!Kinds(function.evalType)) Some(s"functions of eval type ${function.evalType} are not known")
      else if (function.children.exists(_.isInstanceOf[NamedArgumentExpression])) Some("it has named arguments")
      else if (!func.broadcastVars.isEmpty && SparkEnv.get.serializerManager.encryptionEnabled)
        Some("it uses a broadcast variable, which is encrypted")
      else if (!func.pythonIncludes.isEmpty && JobArtifactSet.getCurrentJobArtifactState.nonEmpty)
        Some("files were added to its session")
      else
        types
          .find(!SqlType.isSupported(_))
          .map(dataType => s"lanes have no type ${dataType.sql}")
          .orElse(Needs.collectFirst { case (name, reason) if command.contains(name) => reason })
    why.map(reason => s"${function.name}: $reason")
  }

  private def planned(functions: Seq[PythonUDF], all: Seq[PythonUDF]): Either[String, Seq[PythonUDF]] = {
    val distinct = all.distinctBy(identity(_))
    val python = distinct.head.func.pythonExec
    if (distinct.exists(_.func.pythonExec != python)) return Left("its functions have different interpreters")
    val source = new QueryFunctions(
      s"PySpark's ${distinct.map(_.name).distinct.mkString(", ")}",
      distinct.map(declared),
      python,
      distinct.flatMap(_.func.pythonIncludes.asScala).distinct,
      distinct.flatMap(_.func.broadcastVars.asScala).distinctBy(_.id))
    // Types do not tell everything. A worker on the driver unpickles the functions, and says what it does not support.
    val known =
      try Libraries.use(source)(_.functions)
      catch {
        case error: CrosslaneException =>
          return Left(s"${distinct.map(_.name).distinct.mkString(", ")}: ${reason(error.getMessage)}")
      }
    val lanes = distinct
      .zip(known)
      .map { case (function, description) =>
        identity(function) -> LaneFunction(source, description.copy(language = "pyspark"))
      }
      .toMap
    Right(
      functions.map(_.transform { case function: PythonUDF => function.copy(func = lanes(identity(function))) }
        .asInstanceOf[PythonUDF]))
  }

  /** The reason in an error of the worker. */
  private def reason(message: String): String = {
    val marker = "Unsupported: "
    val at = message.indexOf(marker)
    (if (at < 0) message else message.substring(at + marker.length)).linesIterator.next()
  }

  /** Tells functions apart. Calls of one function with different arguments of the same types have the same identity. */
  private def identity(function: PythonUDF): (Seq[Byte], Int, Seq[DataType], DataType, String) =
    (function.func.command, function.evalType, function.children.map(_.dataType), function.dataType, function.name)

  private def conf: Map[String, String] =
    Relevant.flatMap(name => Try(SQLConf.get.getConfString(name)).toOption.filter(_ != null).map(name -> _)).toMap

  private def declared(function: PythonUDF): DeclaredFunction = {
    val parameters = function.children.zipWithIndex.map { case (child, index) => s"_$index ${SqlType(child.dataType)}" }
    DeclaredFunction(
      function.name,
      s"${SqlType.quoted(function.name)}(${parameters.mkString(", ")}) -> ${SqlType(function.dataType)}",
      function.func.command.toArray,
      function.evalType,
      function.children.map(child => plain(child.dataType).json),
      plain(function.dataType).json,
      conf)
  }

  /** A type without the usual collation, which Spark Connect writes out. */
  private def plain(dataType: DataType): DataType = dataType.transformRecursively {
    case text: StringType if text.isUTF8BinaryCollation && !text.isInstanceOf[CharType] && !text.isInstanceOf[VarcharType] =>
      StringType
  }

  /** A worker's error as PySpark shows its own: with a traceback in Python's form. */
  def exception(error: CrosslaneException): RuntimeException =
    CrosslaneErrors.pythonException(traceback(error.getMessage))

  private val Frame = """  at (.*):(\d+) in (.*)""".r
  private val First = """(?s)[^\n]*?: (.*)""".r

  /** Python's traceback of a message that has `f: ValueError: text`, frames, and the task. */
  private def traceback(message: String): String = {
    val lines = message.linesIterator.toSeq
    val firstFrame = lines.indexWhere(Frame.matches(_))
    if (firstFrame < 0) return message
    val what = lines.take(firstFrame).mkString("\n") match {
      case First(rest) => rest
      case other => other
    }
    val frames = lines.drop(firstFrame).takeWhile(line => !line.startsWith("  in row ") && !line.startsWith("  on ")).map {
      case Frame(file, line, name) => s"""  File "$file", line $line, in $name"""
      case other => other
    }
    (("Traceback (most recent call last):" +: frames) :+ what).mkString("", "\n", "\n")
  }
}
