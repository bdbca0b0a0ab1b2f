package org.apache.spark.sql.crosslane

import dev.crosslane.spark.CrosslaneException
import java.io.File
import java.nio.file.Files
import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry
import org.apache.spark.sql.catalyst.expressions.Cast.{toSQLExpr, toSQLType}
import org.apache.spark.sql.catalyst.expressions.{Cast, Expression, ExpressionInfo, Literal, NamedArgumentExpression, PythonUDF}
import org.apache.spark.sql.catalyst.FunctionIdentifier
import org.apache.spark.sql.catalyst.plans.logical.{Generate, LogicalPlan, OneRowRelation}
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.crosslane.definitions.{Definition, DefinitionParser}
import org.apache.spark.sql.crosslane.libraries.{Description, FileSource, LaneFunction, Libraries, Registered, Source}
import org.apache.spark.sql.crosslane.planning.{LaneAggregate, LaneColumns, LaneGenerator, LaneStrategy, LaneStream}
import org.apache.spark.sql.errors.QueryCompilationErrors
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.{classic => classicsql, AnalysisException, DataFrame, Row, SparkSession, SparkSessionExtensions}
import org.apache.spark.util.Utils
import org.apache.spark.{SparkConf, SparkContext}
import scala.jdk.CollectionConverters._

/** Makes functions known to Spark: those of a session's files, and those that programs register. */
object Plugin {
  private[crosslane] val FilesKey = "spark.crosslane.functions"

  /** The places where the functions of the last session's files are declared, by their names. */
  @volatile private var ofFiles = Map.empty[String, String]

  /** Registers the functions of the session's files, and the strategy that plans them. */
  def install(extensions: SparkSessionExtensions): Unit = {
    extensions.injectPlannerStrategy(_ => LaneStrategy)
    extensions.injectColumnar(_ => LaneColumns)
    extensions.injectParser((_, parser) => DefinitionParser(parser))
    val context = SparkContext.getActive.getOrElse {
      throw new CrosslaneException("there is no SparkContext")
    }
    context.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = Libraries.end()
    })
    val functions = files(context.conf).flatMap(load(context, _))
    val byName = functions.groupBy(_.description.name.toLowerCase).values.toSeq
    byName.find(_.distinctBy(function => (function.source, function.description.place)).length > 1).foreach { several =>
      val places = several.map(_.description.place).mkString(" and ")
      throw new CrosslaneException(
        s"the function ${several.head.description.name} is declared twice: $places. Spark has one function of a name, " +
          "and no overloads: give each another name")
    }
    ofFiles = byName.map(several => several.head.description.name.toLowerCase -> several.head.description.place).toMap
    byName.foreach { several =>
      val (identifier, information) = (FunctionIdentifier(several.head.description.name), info(several.head))
      several.head.description.kind match {
        case "stream" => Streams.add(several.head)
        case "table" =>
          extensions.injectFunction((identifier, information, call(several, _)))
          extensions.injectTableFunction((identifier, information, table(several, _)))
        case _ => extensions.injectFunction((identifier, information, call(several, _)))
      }
    }
  }

  private def files(conf: SparkConf): Seq[String] =
    conf.get(FilesKey, "").split(',').toSeq.map(_.trim).filter(_.nonEmpty)

  /** The functions of a file, which Spark sends to the executors. */
  private def load(context: SparkContext, file: String): Seq[LaneFunction] = {
    val path = new File(file).getAbsoluteFile
    if (!path.isFile) {
      throw new CrosslaneException(s"$FilesKey names $file, which is not there (looked at $path)")
    }
    val source = FileSource(path.getPath, FileSource.digest(path.getPath))
    send(context, path, path.getName)
    functions(source)
  }

  /** Sends a copy of a file to the executors: the file may be changed or gone when they ask for it. */
  private def send(context: SparkContext, file: File, name: String): File = {
    val copy = new File(Utils.createTempDir(namePrefix = "crosslane"), name)
    Files.copy(file.toPath, copy.toPath)
    context.addFile(copy.getPath)
    copy
  }

  private def functions(source: Source): Seq[LaneFunction] =
    Libraries.use(source)(_.functions.map(LaneFunction(source, _)))

  /**
   * Registers functions that a Python program has pickled, in one session. A function replaces
   * another one of its name.
   *
   * @return their signatures
   */
  def register(session: SparkSession, name: String, pickle: Array[Byte]): Array[String] = {
    publish(session, functions(new Registered(s"registered function $name", pickle))).toArray
  }

  /**
   * Defines a function in one session.
   *
   * @return its signatures; none if there is such a function, and the definition leaves it alone
   * @throws CrosslaneException if there is such a function, or it cannot be loaded
   */
  private[crosslane] def create(session: SparkSession, definition: Definition): Seq[String] = {
    val name = definition.name
    val exists = classic(session).sessionState.catalog.isTemporaryFunction(FunctionIdentifier(name))
    if (exists && !definition.orReplace && !definition.ifNotExists) {
      throw new CrosslaneException(s"there is a function $name; write CREATE OR REPLACE FUNCTION $name(...) to replace it")
    }
    if (exists && definition.ifNotExists) {
      Seq.empty
    } else {
      val file = new File(definition.path)
      // Executors know files by their names. This one differs for each definition.
      val unique = s"${FileSource.digest(file.getPath).take(12)}_${file.getName}"
      val copy = send(session.sparkContext, file, unique)
      publish(session, functions(FileSource(copy.getPath, FileSource.digest(copy.getPath))))
    }
  }

  /** Makes functions of one name callable in a session, and returns their signatures. */
  private def publish(session: SparkSession, several: Seq[LaneFunction]): Seq[String] = {
    info(several.head)
    val (called, state) = (several.head.description.name, classic(session).sessionState)
    ofFiles.get(called.toLowerCase).foreach { place =>
      // Spark would still call the function of the file.
      throw new CrosslaneException(
        s"the function $called is declared in a file of $FilesKey ($place): give this one another name")
    }
    several.head.description.kind match {
      case "stream" => Streams.add(several.head)
      case "table" =>
        state.functionRegistry.createOrReplaceTempFunction(called, call(several, _), "python_udf")
        state.tableFunctionRegistry.createOrReplaceTempFunction(called, table(several, _), "python_udtf")
      case _ => state.functionRegistry.createOrReplaceTempFunction(called, call(several, _), "python_udf")
    }
    several.map(_.description.signature)
  }

  /**
   * The results of a stream function for a table.
   *
   * @throws CrosslaneException if there is no such function
   * @throws AnalysisException if the table lacks one of the function's columns, or has one of a type that cannot be cast
   */
  def map(table: DataFrame, name: String): DataFrame = {
    val function = Streams(name)
    val columns = function.description.parameters.head.dataType.asInstanceOf[StructType]
    val input = table.select(columns.map(column => table.col(s"`${column.name}`").cast(column.dataType).as(column.name)): _*)
    val session = classic(table.sparkSession)
    val output = DataTypeUtils.toAttributes(function.description.returns.get.asInstanceOf[StructType])
    val plan = LaneStream(function, output, input.asInstanceOf[classicsql.Dataset[Row]].queryExecution.analyzed)
    classicsql.Dataset.ofRows(session, plan)
  }

  private def classic(session: SparkSession): classicsql.SparkSession = session.asInstanceOf[classicsql.SparkSession]

  /** Spark's description of a function. */
  private def info(function: LaneFunction): ExpressionInfo = {
    val description = function.description
    if (FunctionRegistry.functionSet.exists(_.funcName.equalsIgnoreCase(description.name))) {
      throw new CrosslaneException(
        s"${description.name} (${description.place}) has the name of a function that Spark has itself: give it another one")
    }
    val usage = s"${description.signature} - ${description.text} (${description.language}, ${description.place})"
    new ExpressionInfo(classOf[LaneFunction].getName, null, description.name, usage, "", "", "", "", "", "", "python_udf")
  }

  /** A table function in FROM. */
  private def table(several: Seq[LaneFunction], arguments: Seq[Expression]): LogicalPlan =
    Generate(call(several, arguments).asInstanceOf[LaneGenerator], Nil, outer = false, None, Nil, OneRowRelation())

  /**
   * A call. Each argument is cast to its parameter's type, if Spark would store it in a column of
   * that type. A function whose last parameters have defaults is a list of functions, one for each
   * number of arguments.
   */
  private def call(several: Seq[LaneFunction], arguments: Seq[Expression]): Expression = {
    val function = several match {
      case Seq(one) => one
      case _ =>
        several.find(_.description.parameters.length == arguments.length).getOrElse {
          val counts = several.map(_.description.parameters.length).sorted
          throw QueryCompilationErrors.wrongNumArgsError(several.head.description.name, counts, arguments.length)
        }
    }
    val description = function.description
    description.unsupported.foreach { why =>
      throw new CrosslaneException(s"${description.signature} (${description.place}) cannot be called from Spark: $why")
    }
    val parameters = description.parameters
    val all = placed(description, arguments)
    val cast = all.zip(parameters).zipWithIndex.map { case ((argument, parameter), index) =>
      if (argument.dataType == parameter.dataType) {
        argument
      } else if (Cast.canANSIStoreAssign(argument.dataType, parameter.dataType)) {
        Cast(argument, parameter.dataType)
      } else {
        throw new AnalysisException(
          "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE",
          Map(
            "sqlExpr" -> toSQLExpr(argument),
            "paramIndex" -> s"${index + 1}. (${parameter.name} of ${description.signature})",
            "requiredType" -> toSQLType(parameter.dataType),
            "inputSql" -> toSQLExpr(argument),
            "inputType" -> toSQLType(argument.dataType)))
      }
    }
    description.kind match {
      case "scalar" =>
        val (returns, evalType) = (description.returns.get, PythonEvalType.SQL_SCALAR_PANDAS_UDF)
        PythonUDF(description.name, function, returns, cast, evalType, description.deterministic)
      case "table" => LaneGenerator(function, cast)
      case "aggregate" => LaneAggregate(function, cast)
      case kind => throw new CrosslaneException(s"${description.signature} is of the kind $kind, and cannot be called here")
    }
  }

  /**
   * One argument for each parameter. Named parameters without an argument get NULL, and the guest
   * leaves them out of the call.
   */
  private def placed(description: Description, arguments: Seq[Expression]): Seq[Expression] = {
    val parameters = description.parameters
    val (named, positional) = arguments.partition(_.isInstanceOf[NamedArgumentExpression])
    val byName = named.collect { case NamedArgumentExpression(name, value) => name.toLowerCase -> value }.toMap
    val all = parameters.zipWithIndex.map { case (parameter, index) =>
      positional
        .lift(index)
        .orElse(byName.get(parameter.name.toLowerCase))
        .orElse(if (parameter.named) Some(Literal(null, parameter.dataType)) else None)
    }
    val unknown = byName.keySet -- parameters.drop(positional.length).map(_.name.toLowerCase)
    if (positional.length > parameters.length || all.exists(_.isEmpty) || unknown.nonEmpty) {
      throw QueryCompilationErrors.wrongNumArgsError(description.name, Seq(parameters.length), arguments.length)
    }
    all.flatten
  }
}

/** The stream functions. Programs find them by their names, and Spark does not know them. */
private object Streams {
  private val known = new java.util.concurrent.ConcurrentHashMap[String, LaneFunction]

  def add(function: LaneFunction): Unit = known.put(function.description.name.toLowerCase, function)

  def apply(name: String): LaneFunction = Option(known.get(name.toLowerCase)).getOrElse {
    val names = known.keySet.asScala.toSeq.sorted.mkString(", ")
    throw new CrosslaneException(s"there is no stream function $name" + (if (names.isEmpty) "" else s"; there are: $names"))
  }
}
