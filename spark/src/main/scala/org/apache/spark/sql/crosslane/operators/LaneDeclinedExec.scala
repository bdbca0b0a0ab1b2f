package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions.{Attribute, SortOrder}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}

/** Shows in EXPLAIN why Spark runs functions in its own workers. */
private[crosslane] final case class LaneDeclinedExec(reason: String, child: SparkPlan) extends UnaryExecNode {
  override def nodeName: String = "CrosslaneDeclined"
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering
  override protected def doExecute(): RDD[InternalRow] = child.execute()
  override protected def withNewChildInternal(newChild: SparkPlan): LaneDeclinedExec = copy(child = newChild)
}
