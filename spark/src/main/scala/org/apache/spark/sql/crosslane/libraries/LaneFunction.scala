package org.apache.spark.sql.crosslane
package libraries

import org.apache.spark.api.python.{PythonBroadcast, PythonFunction}
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.util.CollectionAccumulator

/**
 * A function of a library. A plan has it where a function of Spark's has a pickled Python function.
 */
private[crosslane] final case class LaneFunction(source: Source, description: Description) extends PythonFunction {
  override def command: Seq[Byte] = Nil
  override def envVars: java.util.Map[String, String] = java.util.Collections.emptyMap()
  override def pythonIncludes: java.util.List[String] = java.util.Collections.emptyList()
  override def pythonExec: String = ""
  override def pythonVer: String = ""
  override def broadcastVars: java.util.List[Broadcast[PythonBroadcast]] = java.util.Collections.emptyList()
  override def accumulator: CollectionAccumulator[Array[Byte]] = null

  override def toString: String = s"${description.language} function ${description.name}"
}
