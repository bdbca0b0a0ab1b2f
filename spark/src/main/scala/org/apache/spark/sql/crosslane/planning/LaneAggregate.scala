package org.apache.spark.sql.crosslane
package planning

import org.apache.spark.sql.catalyst.expressions.aggregate.{ImperativeAggregate, TypedImperativeAggregate}
import org.apache.spark.sql.catalyst.expressions.{Expression, UnsafeProjection}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.tasks.{LaneState, LaneStates}
import org.apache.spark.sql.types.DataType

/**
 * An aggregate whose states live in a guest. Spark treats it as one of its own: it can aggregate
 * partially before a shuffle, and with DISTINCT, FILTER and windows. A shuffle sends states as the
 * bytes that the guest makes of them.
 */
private[crosslane] final case class LaneAggregate(
    function: LaneFunction,
    children: Seq[Expression],
    mutableAggBufferOffset: Int = 0,
    inputAggBufferOffset: Int = 0)
    extends TypedImperativeAggregate[LaneState] {
  override def nullable: Boolean = true
  override def dataType: DataType = function.description.returns.get
  override def prettyName: String = function.description.name
  override lazy val deterministic: Boolean = function.description.deterministic && children.forall(_.deterministic)

  @transient private lazy val states = LaneStates.of(function)
  @transient private lazy val arguments = UnsafeProjection.create(children)

  override def createAggregationBuffer(): LaneState = new LaneState(states, null)

  override def update(buffer: LaneState, input: InternalRow): LaneState = {
    buffer.owner.update(buffer, arguments(input))
    buffer
  }

  override def merge(buffer: LaneState, input: LaneState): LaneState = {
    buffer.owner.combine(buffer, input)
    buffer
  }

  override def eval(buffer: LaneState): Any = buffer.owner.result(buffer)

  override def serialize(buffer: LaneState): Array[Byte] = buffer.owner.save(buffer)

  override def deserialize(saved: Array[Byte]): LaneState = new LaneState(states, saved)

  override def withNewMutableAggBufferOffset(offset: Int): ImperativeAggregate = copy(mutableAggBufferOffset = offset)
  override def withNewInputAggBufferOffset(offset: Int): ImperativeAggregate = copy(inputAggBufferOffset = offset)
  override protected def withNewChildrenInternal(newChildren: IndexedSeq[Expression]): LaneAggregate =
    copy(children = newChildren)

  /** The arguments that EXPLAIN shows. */
  override def flatArguments: Iterator[Any] = children.iterator
}
