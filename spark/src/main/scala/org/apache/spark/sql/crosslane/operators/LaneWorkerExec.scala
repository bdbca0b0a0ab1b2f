package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.crosslane.pyspark.Workers
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.{Partition, Partitioner, TaskContext}

/**
 * Runs an operator of Spark's whose functions run in workers of Crosslane's daemon.
 *
 * @param shown the functions, or why they are not called over lanes
 * @param pythons the interpreters of the functions
 */
private[crosslane] final case class LaneWorkerExec(shown: String, pythons: Seq[String], child: SparkPlan) extends UnaryExecNode {
  override def nodeName: String = "CrosslaneWorker"
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering
  override protected def stringArgs: Iterator[Any] = Iterator(shown)
  override protected def doExecute(): RDD[InternalRow] = new LaneWorkerExec.Prepared(child.execute(), pythons)
  override protected def withNewChildInternal(newChild: SparkPlan): LaneWorkerExec = copy(child = newChild)
}

private[crosslane] object LaneWorkerExec {

  /** The rows of `rows`. Prepares the process first, before Spark's operator starts a worker. */
  private final class Prepared(rows: RDD[InternalRow], pythons: Seq[String]) extends RDD[InternalRow](rows) {
    @transient override val partitioner: Option[Partitioner] = rows.partitioner
    override protected def getPartitions: Array[Partition] = firstParent[InternalRow].partitions
    override def compute(split: Partition, context: TaskContext): Iterator[InternalRow] = {
      pythons.foreach(Workers.prepare)
      firstParent[InternalRow].iterator(split, context)
    }
  }
}
