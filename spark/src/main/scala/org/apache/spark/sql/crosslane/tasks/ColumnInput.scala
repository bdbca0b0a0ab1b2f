package org.apache.spark.sql.crosslane
package tasks

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.crosslane.columns.{ColumnWriter, RowBatch, StructVector}
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.vectorized.{ColumnarBatch, ColumnVector}

/**
 * Columns of Spark's, such as those of a Parquet file. Spark may overwrite them when it reads the
 * next ones, so batches have copies.
 *
 * @param keeps the columns that batches keep, for [[LaneTask.pointColumn]]
 * @param condition which rows are read
 */
private[crosslane] final class ColumnInput(
    columns: Iterator[ColumnarBatch],
    program: Program,
    childOutput: Seq[Attribute],
    keeps: Seq[Attribute],
    condition: Option[Expression],
    partition: Int)
    extends BatchInput {

  private val extra = keeps.filterNot(column => program.inputs.exists(_.semanticEquals(column)))
  private val wanted = program.inputs ++ extra
  private val (copied, computed) = wanted.indices.toArray.partition(index => ColumnInput.isColumn(wanted(index)))
  private val toCopied = copied.map(index => source(wanted(index)))
  private val toComputed = UnsafeProjection.create(computed.toSeq.map(wanted), childOutput)
  private val predicate = condition.map(Predicate.create(_, childOutput))
  // Some expressions, such as rand(), depend on the partition.
  toComputed.initialize(partition)
  predicate.foreach(_.initialize(partition))

  /** How many rows are copied before the batch's size is looked at again, at most. */
  private val together =
    if (wanted.forall(column => UnsafeRow.isFixedLength(column.dataType))) Long.MaxValue else ColumnInput.Together

  /** What Spark has read last, and the columns that are copied. The others are null. */
  private var current: ColumnarBatch = null
  private val vectors = new Array[ColumnVector](wanted.length)

  /** The numbers of its rows for which the condition is true, or null if it is for all. */
  private var selected: Array[Int] = null

  /** How many of these rows are in batches, and how many there are. */
  private var done = 0
  private var rows = 0

  private def source(expression: Expression): ColumnarBatch => ColumnVector = expression match {
    case struct: CreateNamedStruct =>
      val (structType, fields) = (struct.dataType.asInstanceOf[StructType], struct.valExprs.map(source).toArray)
      batch => new StructVector(structType, fields.map(_(batch)))
    case column =>
      val index = BatchInput.index(column, childOutput)
      _.column(index)
  }

  /** Where a batch has the columns to keep. */
  val kept: Seq[ColumnInput.Kept] =
    keeps.map(column => ColumnInput.Kept(wanted.indexWhere(_.semanticEquals(column)), column.dataType))

  override def others: Seq[DataType] = extra.map(_.dataType)

  override def hasNext: Boolean = {
    while (done >= rows && columns.hasNext) {
      current = columns.next()
      copied.indices.foreach(index => vectors(copied(index)) = toCopied(index)(current))
      done = 0
      rows = current.numRows
      selected = null
      predicate.foreach(select)
    }
    done < rows
  }

  private def select(predicate: BasePredicate): Unit = {
    val (numbers, all) = (new Array[Int](rows), rows)
    rows = 0
    var number = 0
    while (number < all) {
      if (predicate.eval(current.getRow(number))) {
        numbers(rows) = number
        rows += 1
      }
      number += 1
    }
    if (rows < all) selected = numbers
  }

  override def fill(batch: RowBatch, maxRows: Int, maxBytes: Long): Unit =
    while (batch.rows < maxRows && batch.bytes < maxBytes && hasNext) {
      // As many rows as have room, if the next ones are as large as those before.
      val expected = if (batch.rows == 0) 1 else (maxBytes - batch.bytes) / (batch.bytes / batch.rows + 1) + 1
      val count = math.min(math.min(rows - done, maxRows - batch.rows).toLong, math.min(expected, together)).toInt
      if (selected == null) batch.addColumns(vectors, done, count) else batch.addSelected(vectors, selected, done, count)
      if (computed.nonEmpty) compute(batch, count)
      done += count
    }

  private def compute(batch: RowBatch, count: Int): Unit = {
    var index = done
    while (index < done + count) {
      val row = current.getRow(if (selected == null) index else selected(index))
      batch.addValues(toComputed(row), computed)
      index += 1
    }
  }
}

private[crosslane] object ColumnInput {

  /** Values may have any size. So a batch is too large by so many rows, at most. */
  private val Together = 16L

  /** A column of a batch. */
  final case class Kept(column: Int, dataType: DataType)

  /** Whether an expression is a column, or a STRUCT of columns. */
  private def isColumn(expression: Expression): Boolean = expression match {
    case struct: CreateNamedStruct => struct.valExprs.forall(_.isInstanceOf[Attribute])
    case other => other.isInstanceOf[Attribute]
  }

  /** Whether batches can keep these columns. */
  def canKeep(columns: Seq[Attribute]): Boolean = columns.forall(column => ColumnWriter.isSupported(column.dataType))
}
