package org.apache.spark.sql.crosslane
package tasks

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.crosslane.columns.{RowBatch, SqlType, StructVector}
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
    extends BatchInput
    with PredicateHelper {

  private val extra = keeps.filterNot(column => program.inputs.exists(_.semanticEquals(column)))
  private val wanted = program.inputs ++ extra
  private val (copied, computed) = wanted.indices.toArray.partition(index => ColumnInput.isColumn(wanted(index)))
  private val toCopied = copied.map(index => source(wanted(index)))
  private val toComputed = UnsafeProjection.create(computed.toSeq.map(wanted), childOutput)
  // One after the other, as in Spark's filters: a row that is out is not seen by the rest.
  private val predicates = condition.toArray.flatMap(splitConjunctivePredicates(_)).map(Predicate.create(_, childOutput))
  // Some expressions, such as rand(), depend on the partition.
  toComputed.initialize(partition)
  predicates.foreach(_.initialize(partition))

  /** How many rows are copied before the batch's size is looked at again, at most. */
  private val together =
    if (wanted.forall(column => UnsafeRow.isFixedLength(column.dataType))) Long.MaxValue else ColumnInput.Together

  /** What Spark has read last, and the columns that are copied. The others are null. */
  private var current: ColumnarBatch = null
  private val vectors = new Array[ColumnVector](wanted.length)

  /** The numbers of its rows for which the conditions are true, among the first `seen` rows. */
  private var selected = new Array[Int](0)
  private var found = 0
  private var seen = 0

  /** How many of the selected rows are in batches. */
  private var done = 0

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
    while (!select(1) && advance()) {}
    done < found
  }

  /** Reads the next columns, if there are more. Batches have copies of all rows of the last ones. */
  private def advance(): Boolean = {
    // Before the next ones are looked for, which may have the same memory.
    if (current != null) current.closeIfFreeable()
    current = null
    found = 0
    seen = 0
    done = 0
    columns.hasNext && {
      current = columns.next()
      copied.indices.foreach(index => vectors(copied(index)) = toCopied(index)(current))
      if (selected.length < current.numRows) selected = new Array[Int](current.numRows)
      true
    }
  }

  /** Looks at rows until so many are selected that are in no batch. Whether there is one. */
  private def select(rows: Int): Boolean = {
    val all = if (current == null) 0 else current.numRows
    while (found - done < rows && seen < all) {
      if (isSelected(seen)) {
        selected(found) = seen
        found += 1
      }
      seen += 1
    }
    done < found
  }

  private def isSelected(row: Int): Boolean = {
    var index = 0
    while (index < predicates.length && predicates(index).eval(current.getRow(row))) index += 1
    index == predicates.length
  }

  override def fill(batch: RowBatch, maxRows: Int, maxBytes: Long): Unit =
    while (batch.rows < maxRows && batch.bytes < maxBytes && hasNext) {
      // As many rows as have room, if the next ones are as large as those before.
      val expected = if (batch.rows == 0) 1 else (maxBytes - batch.bytes) / (batch.bytes / batch.rows + 1) + 1
      val most = math.min((maxRows - batch.rows).toLong, math.min(expected, together)).toInt
      select(most)
      val count = math.min(found - done, most)
      val first = selected(done)
      if (selected(done + count - 1) - first == count - 1) batch.addColumns(vectors, first, count)
      else batch.addSelected(vectors, selected, done, count)
      if (computed.nonEmpty) compute(batch, count)
      done += count
    }

  private def compute(batch: RowBatch, count: Int): Unit = {
    var index = done
    while (index < done + count) {
      batch.addValues(toComputed(current.getRow(selected(index))), computed)
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
  def canKeep(columns: Seq[Attribute]): Boolean = columns.forall(column => SqlType.isSupported(column.dataType))
}
