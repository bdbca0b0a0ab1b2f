package org.apache.spark.sql.crosslane
package columns

import dev.crosslane.spark.Native
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarArray, ColumnarMap}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * A column of results in the memory of the native half. [[readTable]] gives it the addresses of a
 * batch. Values must be copied before the next batch.
 */
private[crosslane] final class LaneVector(dataType: DataType) extends ColumnVector(dataType) {
  private var validity = 0L
  private var offsets = 0L
  private var values = 0L

  /** The children in the layout of lanes. A MAP has one: its entries. */
  private val below: Array[LaneVector] = dataType match {
    case ArrayType(element, _) => Array(new LaneVector(element))
    case MapType(key, value, _) => Array(new LaneVector(StructType(Array(StructField("key", key), StructField("value", value)))))
    case StructType(fields) => fields.map(field => new LaneVector(field.dataType))
    case _ => Array.empty
  }

  /** The fields of an interval, as Spark reads them. */
  private val intervalFields: Array[ColumnVector] = dataType match {
    case CalendarIntervalType => Array(new IntervalField(0), new IntervalField(4), new IntervalField(8))
    case _ => Array.empty
  }

  /**
   * Reads where the column lies (see `columns.rs`). Returns the address of the next column's words.
   */
  def readTable(table: Long): Long = {
    validity = Platform.getLong(null, table + 8)
    offsets = Platform.getLong(null, table + 16)
    values = Platform.getLong(null, table + 24)
    below.foldLeft(table + 8 * Native.COLUMN_WORDS)((at, child) => child.readTable(at))
  }

  /** The number of columns: this one and all below it. */
  def columns: Int = 1 + below.map(_.columns).sum

  override def close(): Unit = {}
  override def hasNull: Boolean = validity != 0
  override def numNulls: Int = if (validity == 0) 0 else 1

  private def bit(bits: Long, row: Int): Boolean = (Platform.getByte(null, bits + row / 8) >> (row % 8) & 1) != 0

  override def isNullAt(row: Int): Boolean = validity != 0 && !bit(validity, row)
  override def getBoolean(row: Int): Boolean = bit(values, row)
  override def getByte(row: Int): Byte = Platform.getByte(null, values + row)
  override def getShort(row: Int): Short = Platform.getShort(null, values + row * 2L)
  override def getInt(row: Int): Int = Platform.getInt(null, values + row * 4L)
  override def getLong(row: Int): Long = Platform.getLong(null, values + row * 8L)
  override def getFloat(row: Int): Float = Platform.getFloat(null, values + row * 4L)
  override def getDouble(row: Int): Double = Platform.getDouble(null, values + row * 8L)

  private def offset(row: Int): Int = Platform.getInt(null, offsets + row * 4L)

  override def getUTF8String(row: Int): UTF8String = {
    if (isNullAt(row)) return null
    val from = offset(row)
    UTF8String.fromAddress(null, values + from, offset(row + 1) - from)
  }

  override def getBinary(row: Int): Array[Byte] = {
    if (isNullAt(row)) return null
    val from = offset(row)
    val bytes = new Array[Byte](offset(row + 1) - from)
    Platform.copyMemory(null, values + from, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    bytes
  }

  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = {
    if (isNullAt(row)) return null
    val (low, high) = (Platform.getLong(null, values + row * 16L), Platform.getLong(null, values + row * 16L + 8))
    if (precision <= Decimal.MAX_LONG_DIGITS) {
      Decimal.createUnsafe(low, precision, scale)
    } else {
      val upper = java.math.BigInteger.valueOf(high).shiftLeft(64)
      val lower = new java.math.BigInteger(java.lang.Long.toUnsignedString(low))
      Decimal(new java.math.BigDecimal(upper.add(lower), scale), precision, scale)
    }
  }

  override def getArray(row: Int): ColumnarArray = {
    if (isNullAt(row)) return null
    val from = offset(row)
    new ColumnarArray(below(0), from, offset(row + 1) - from)
  }

  override def getMap(row: Int): ColumnarMap = {
    if (isNullAt(row)) return null
    val (from, entries) = (offset(row), below(0))
    new ColumnarMap(entries.below(0), entries.below(1), from, offset(row + 1) - from)
  }

  override def getChild(ordinal: Int): ColumnVector = if (intervalFields.nonEmpty) intervalFields(ordinal) else below(ordinal)

  /** A field of an interval. It begins `from` bytes behind the start of a row's interval. */
  private final class IntervalField(from: Int) extends PartialVector(LongType) {
    override def getInt(row: Int): Int = Platform.getInt(null, values + row * 16L + from)
    override def getLong(row: Int): Long = Platform.getLong(null, values + row * 16L + from)
  }
}

/** A STRUCT of columns, which is never NULL. */
private[crosslane] final class StructVector(dataType: StructType, fields: Array[ColumnVector]) extends PartialVector(dataType) {
  override def getChild(ordinal: Int): ColumnVector = fields(ordinal)
}

/** A column without NULLs. Its user reads only what it has. */
private[crosslane] abstract class PartialVector(dataType: DataType) extends ColumnVector(dataType) {
  private def none: Nothing = throw new UnsupportedOperationException(s"a column of ${dataType.sql} does not have it")
  override def close(): Unit = {}
  override def hasNull: Boolean = false
  override def numNulls: Int = 0
  override def isNullAt(row: Int): Boolean = false
  override def getBoolean(row: Int): Boolean = none
  override def getByte(row: Int): Byte = none
  override def getShort(row: Int): Short = none
  override def getInt(row: Int): Int = none
  override def getLong(row: Int): Long = none
  override def getFloat(row: Int): Float = none
  override def getDouble(row: Int): Double = none
  override def getUTF8String(row: Int): UTF8String = none
  override def getBinary(row: Int): Array[Byte] = none
  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = none
  override def getArray(row: Int): ColumnarArray = none
  override def getMap(row: Int): ColumnarMap = none
  override def getChild(ordinal: Int): ColumnVector = none
}
