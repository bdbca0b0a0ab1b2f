package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.{And, Attribute, Expression}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.crosslane.operators.ColumnarExec
import org.apache.spark.sql.execution.{ColumnarRule, ColumnarToRowExec, FilterExec, ProjectExec, RowToColumnarExec, SparkPlan}

/**
 * Lets columns, such as those of Parquet files, go into lanes without becoming rows, and results
 * stay columns. Spark has put its nodes that make rows of columns into the plan before.
 */
private[crosslane] object LaneColumns extends ColumnarRule {

  override def postColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
      case lane: ColumnarExec => lane.withColumns(columns(lane.child)).map(ColumnarToRowExec(_)).getOrElse(lane)
      case RowToColumnarExec(ColumnarToRowExec(lane: ColumnarExec)) => lane
    }
  }

  /**
   * The node from whose columns a plan makes its rows, and which of them it has, if it does nothing
   * else.
   */
  private def columns(plan: SparkPlan): Option[(SparkPlan, Option[Expression])] = plan match {
    case ColumnarToRowExec(child) => Some((child, None))
    // A cached table makes rows itself, if they are wanted.
    case node if node.supportsColumnar => Some((node, None))
    case ProjectExec(list, child) if list.forall(_.isInstanceOf[Attribute]) => columns(child)
    case FilterExec(condition, child) =>
      columns(child).map { case (node, below) => (node, Some(below.map(And(_, condition)).getOrElse(condition))) }
    case _ => None
  }
}
