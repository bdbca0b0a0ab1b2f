package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, Expression, Generator}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, UnaryNode}
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.types.StructType

/**
 * A call of a table function: in FROM, after LATERAL, or among the columns of a SELECT.
 * [[LaneStrategy]] plans it.
 */
private[crosslane] final case class LaneGenerator(function: LaneFunction, children: Seq[Expression])
    extends Generator
    with CodegenFallback {
  override lazy val deterministic: Boolean = function.description.deterministic && children.forall(_.deterministic)
  override def elementSchema: StructType = function.description.returns.get.asInstanceOf[StructType]
  override def prettyName: String = function.description.name
  override def eval(input: InternalRow): IterableOnce[InternalRow] =
    throw new UnsupportedOperationException(s"$prettyName is evaluated over lanes, by an operator of its own")
  override protected def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): LaneGenerator =
    copy(children = newChildren)
}

/** The results of a stream function for a table. */
private[crosslane] final case class LaneStream(function: LaneFunction, output: Seq[Attribute], child: LogicalPlan)
    extends UnaryNode {
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override lazy val references: AttributeSet = AttributeSet(child.output)
  override protected def withNewChildInternal(newChild: LogicalPlan): LaneStream = copy(child = newChild)
}
