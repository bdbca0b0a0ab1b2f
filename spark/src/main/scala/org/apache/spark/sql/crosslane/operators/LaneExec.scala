package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.execution.UnaryExecNode
import org.apache.spark.TaskContext
import scala.reflect.ClassTag

/** An operator that calls functions over lanes. */
private[crosslane] trait LaneExec extends UnaryExecNode {

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"),
    "batches" -> SQLMetrics.createMetric(sparkContext, "number of batches"),
    "sentBytes" -> SQLMetrics.createSizeMetric(sparkContext, "bytes sent to workers"),
    "functionTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in the functions"),
    "callTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in calls"),
    "waitTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time waiting for results"),
    "errors" -> SQLMetrics.createMetric(sparkContext, "rows NULL because of errors"),
    "retries" -> SQLMetrics.createMetric(sparkContext, "calls tried again"),
    "workersStarted" -> SQLMetrics.createMetric(sparkContext, "workers started"),
    "workersLost" -> SQLMetrics.createMetric(sparkContext, "workers lost"))

  /** The text for EXPLAIN, such as `slug(title) [python]`. */
  protected def shown(name: String, arguments: Seq[Expression], functions: Seq[LaneFunction]): String =
    s"$name(${arguments.mkString(", ")}) [${functions.map(_.description.language).distinct.mkString(", ")}]"

  /**
   * Runs `run` on the rows or columns of each partition. It also runs for empty partitions, if the
   * program iterates.
   */
  protected def executed[In, Out: ClassTag](program: Program, input: RDD[In])(
      run: (Iterator[In], TaskContext) => Iterator[Out]): RDD[Out] = {
    val alsoIfEmpty = program.iterates
    input.mapPartitions(rows => if (alsoIfEmpty || rows.hasNext) run(rows, TaskContext.get()) else Iterator.empty)
  }
}
