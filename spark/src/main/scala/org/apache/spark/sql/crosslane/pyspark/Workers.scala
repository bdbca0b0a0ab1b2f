package org.apache.spark.sql.crosslane
package pyspark

import org.apache.spark.api.python.{PythonEvalType, PythonFunction, SimplePythonFunction}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.{Expression, PythonUDAF, PythonUDF, PythonUDTF}
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.crosslane.libraries.{LaneFunction, PythonPackage}
import org.apache.spark.SparkEnv

/**
 * Workers for the functions of PySpark's that Spark's own operators call. Crosslane's daemon
 * (`crosslane._engines.spark.workers.daemon`) starts them in place of Spark's daemon. They speak Spark's
 * protocol and run Spark's code, with faster loops for common kinds and types.
 */
private[crosslane] object Workers extends Logging {
  private val Daemon = "crosslane._engines.spark.workers.daemon"
  private val DaemonKey = "spark.python.daemon.module"
  private val UsesDaemonKey = "spark.python.use.daemon"

  /** Kinds of functions whose values are pickled. Their workers need neither pandas nor pyarrow. */
  private val Pickled = Set(PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_TABLE_UDF)

  /**
   * The environment variable by which the daemon knows functions that Crosslane runs. Its value says
   * what the daemon imports before it starts workers: `pandas` (with pyarrow) or `none`.
   */
  private val Variable = "CROSSLANE_WORKER_IMPORTS"

  /** Why Spark starts the workers itself. */
  def reasonAgainst: Option[String] = {
    val conf = SparkEnv.get.conf
    if (conf.getOption(DaemonKey).exists(_ != Daemon)) Some(s"$DaemonKey is set")
    else if (!conf.getBoolean(UsesDaemonKey, true)) Some(s"$UsesDaemonKey is false")
    else None
  }

  /** The functions of PySpark's that a node calls itself. */
  def functions(node: LogicalPlan): Seq[(String, PythonFunction)] =
    node.expressions.flatMap(_.collect(Call)).collect { case (name, function, _) => (name, function) }

  /** The same node with functions for the workers of Crosslane's daemon. */
  def marked(node: LogicalPlan): LogicalPlan = node.transformExpressions {
    case call if Call.lift(call).exists(!_._2.envVars.containsKey(Variable)) =>
      val (_, function, evalType) = Call(call)
      // The constructors of the expressions differ between versions of Spark.
      val fields = call.productIterator.map {
        case one: PythonFunction if one eq function => forDaemon(function, evalType)
        case other => other
      }
      call.makeCopy(fields.map(_.asInstanceOf[AnyRef]).toArray)
  }

  /** The same function, in a worker of Crosslane's daemon. Spark adds variables of its own. */
  private def forDaemon(function: PythonFunction, evalType: Int): PythonFunction = {
    val variables = new java.util.HashMap(function.envVars)
    variables.put(Variable, imports(function, evalType))
    SimplePythonFunction(
      function.command,
      variables,
      function.pythonIncludes,
      function.pythonExec,
      function.pythonVer,
      function.broadcastVars,
      function.accumulator)
  }

  /** Calls of Python functions: the name, the function and its kind. */
  private val Call: PartialFunction[Expression, (String, PythonFunction, Int)] = {
    case udf: PythonUDF if !udf.func.isInstanceOf[LaneFunction] => (udf.name, udf.func, udf.evalType)
    case udaf: PythonUDAF => (udaf.name, udaf.func, udaf.evalType)
    case udtf: PythonUDTF => (udtf.name, udtf.func, udtf.evalType)
  }

  /** What the daemon may import for a function. A file of `addPyFile` may contain another pandas. */
  private def imports(function: PythonFunction, evalType: Int): String =
    if (!function.pythonIncludes.isEmpty || Pickled(evalType)) "none" else "pandas"

  /** Lets this process start Crosslane's daemon, if the interpreter has the package. */
  def prepare(python: String): Unit = {
    val conf = SparkEnv.get.conf
    if (!conf.contains(DaemonKey) && PythonPackage.contains(python, Daemon)) {
      conf.set(DaemonKey, Daemon)
      logInfo(s"Crosslane's daemon starts the workers of $python")
    }
  }
}
