package org.apache.spark.sql.crosslane
package columns

import dev.crosslane.spark.Native
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.types.DataType
import org.apache.spark.sql.vectorized.ColumnVector
import org.apache.spark.unsafe.Platform

/**
 * Rows of a batch: the arguments of functions as columns and, if they are needed later, the rows
 * themselves or other columns of them.
 *
 * @param types the types of the arguments
 * @param others the types of the other columns
 */
private[crosslane] final class RowBatch(types: Seq[DataType], memory: Memory, others: Seq[DataType] = Nil) {
  private val writers = (types ++ others).map(ColumnWriter(_, memory)).toArray

  /** Where the table has each column. */
  private val places = writers.map(_.columns).scanLeft(0)(_ + _)

  /** The number of columns of arguments. */
  val columns: Int = places(types.length)
  private val table = new Buffer(memory)
  private val content = new Buffer(memory)
  private var contentBytes = 0L

  /** The end of each row in `content`. */
  private val ends = new Buffer(memory)
  private var count = 0

  def rows: Int = count

  def bytes: Long = {
    var sum = contentBytes
    var index = 0
    while (index < writers.length) {
      sum += writers(index).bytes
      index += 1
    }
    sum
  }

  /** Adds a row: the values at `ordinals`. `row` is stored too, unless it is null. */
  def add(values: InternalRow, ordinals: Array[Int], row: UnsafeRow): Unit = {
    var index = 0
    while (index < writers.length) {
      writers(index).write(values, ordinals(index))
      index += 1
    }
    if (row != null) store(row)
    count += 1
  }

  /**
   * Adds `rows` rows of columns of Spark's, the first of which is `start`. `from` has the columns
   * of the arguments and the other columns, with null for those that [[addValues]] adds.
   */
  def addColumns(from: Array[ColumnVector], start: Int, rows: Int): Unit = {
    var index = 0
    while (index < writers.length) {
      if (from(index) != null) writers(index).writeColumn(from(index), start, rows)
      index += 1
    }
    count += rows
  }

  /** Adds `rows` rows, like [[addColumns]]. `selected` has their numbers from `start` on. */
  def addSelected(from: Array[ColumnVector], selected: Array[Int], start: Int, rows: Int): Unit = {
    var index = 0
    while (index < writers.length) {
      if (from(index) != null) writers(index).writeSelected(from(index), selected, start, rows)
      index += 1
    }
    count += rows
  }

  /** Adds the values of a row to some columns. */
  def addValues(values: InternalRow, columns: Array[Int]): Unit = {
    var index = 0
    while (index < columns.length) {
      writers(columns(index)).write(values, index)
      index += 1
    }
  }

  private def store(row: UnsafeRow): Unit = {
    val size = row.getSizeInBytes
    val end = contentBytes + size
    content.ensure(end)
    Platform.copyMemory(row.getBaseObject, row.getBaseOffset, null, content.address + contentBytes, size)
    ends.ensure((count + 1) * 8L)
    Platform.putLong(null, ends.address + count * 8L, end)
    contentBytes = end
  }

  /** Lets `row` read a row that was stored. */
  def point(row: UnsafeRow, at: Int): Unit = {
    val from = if (at == 0) 0 else Platform.getLong(null, ends.address + (at - 1) * 8L)
    val end = Platform.getLong(null, ends.address + at * 8L)
    row.pointTo(null, content.address + from, (end - from).toInt)
  }

  /** Lets `vector` read a column: an argument, or one of the others, which follow. */
  def point(vector: LaneVector, column: Int): Unit =
    vector.readTable(table.address + places(column) * Native.COLUMN_WORDS * 8L)

  /** Writes where the columns lie, and returns the address of that table. */
  def writeTable(): Long = {
    table.ensure(places.last * Native.COLUMN_WORDS * 8L)
    writers.foldLeft(table.address)((at, writer) => writer.writeTable(at))
    table.address
  }

  /** Drops the rows. Buffers of more than `maxBytes` are freed. */
  def clear(maxBytes: Long): Unit = {
    count = 0
    contentBytes = 0
    content.shrink(maxBytes)
    writers.foreach(_.clear(maxBytes))
  }

  def free(): Unit = {
    writers.foreach(_.free())
    Seq(table, content, ends).foreach(_.free())
  }
}
