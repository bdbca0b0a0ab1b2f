package org.apache.spark.sql.crosslane
package tasks

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.columns.RowBatch
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.types.DataType

/** The rows of a task's partition. The task's thread reads them into batches. */
private[crosslane] trait BatchInput {

  /** The types of the columns that a batch has beside the arguments. */
  def others: Seq[DataType]

  /** Whether there are more rows. */
  def hasNext: Boolean

  /** Adds at least one row to an empty batch, and more until it has these rows or bytes. */
  def fill(batch: RowBatch, maxRows: Int, maxBytes: Long): Unit
}

/**
 * Rows of Spark's.
 *
 * @param kept the columns that batches store as rows, for [[LaneTask.point]]. `None`: nothing is stored
 */
private[crosslane] final class RowInput(
    rows: Iterator[InternalRow],
    program: Program,
    childOutput: Seq[Attribute],
    kept: Option[Seq[Attribute]],
    partition: Int)
    extends BatchInput {

  // Arguments that are columns of the child are read from its rows, without a projection.
  private val indices = program.inputs.map(BatchInput.index(_, childOutput))
  private val areColumns = indices.forall(_ >= 0)
  private val values: InternalRow => InternalRow =
    if (areColumns) {
      identity
    } else {
      val projection = UnsafeProjection.create(program.inputs, childOutput)
      // Some expressions, such as rand(), depend on the partition.
      projection.initialize(partition)
      projection
    }
  private val ordinals = (if (areColumns) indices else program.inputs.indices).toArray
  private val toKept: InternalRow => UnsafeRow = kept match {
    case None => _ => null
    case Some(columns) =>
      lazy val projection = UnsafeProjection.create(columns, childOutput)
      val isWhole = columns == childOutput
      row =>
        row match {
          case already: UnsafeRow if isWhole => already
          case other => projection(other)
        }
  }

  override def others: Seq[DataType] = Nil
  override def hasNext: Boolean = rows.hasNext
  override def fill(batch: RowBatch, maxRows: Int, maxBytes: Long): Unit =
    while (batch.rows < maxRows && batch.bytes < maxBytes && (batch.rows == 0 || rows.hasNext)) {
      val next = rows.next()
      batch.add(values(next), ordinals, toKept(next))
    }
}

private object BatchInput {

  /** The index of a column among the child's columns, or -1 if it is not one of them. */
  def index(expression: Expression, childOutput: Seq[Attribute]): Int = expression match {
    case attribute: Attribute => childOutput.indexWhere(_.exprId == attribute.exprId)
    case _ => -1
  }
}
