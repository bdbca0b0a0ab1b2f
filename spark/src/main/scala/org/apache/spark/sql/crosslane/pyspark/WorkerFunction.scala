package org.apache.spark.sql.crosslane
package pyspark

import org.apache.spark.api.python.{PythonBroadcast, PythonFunction}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.util.CollectionAccumulator

/**
 * A function of PySpark's that Spark's own operator calls, in a worker of Crosslane's daemon.
 *
 * @param imports the value of [[WorkerFunction.Variable]]
 */
private[crosslane] final case class WorkerFunction(function: PythonFunction, imports: String) extends PythonFunction {

  /** The workers' environment. Spark adds variables of its own. */
  override val envVars: java.util.Map[String, String] = {
    val all = new java.util.HashMap(function.envVars)
    all.put(WorkerFunction.Variable, imports)
    all
  }

  override def command: Seq[Byte] = function.command
  override def pythonIncludes: java.util.List[String] = function.pythonIncludes
  override def pythonExec: String = function.pythonExec
  override def pythonVer: String = function.pythonVer
  override def broadcastVars: java.util.List[Broadcast[PythonBroadcast]] = function.broadcastVars
  override def accumulator: CollectionAccumulator[Array[Byte]] = function.accumulator
}

private[crosslane] object WorkerFunction {

  /**
   * The environment variable by which the daemon knows functions that Crosslane runs. Its value says
   * what the daemon imports before it starts workers: `pandas` (with pyarrow) or `none`.
   */
  val Variable = "CROSSLANE_WORKER_IMPORTS"
}
