package org.apache.spark.sql.crosslane
package columns

import dev.crosslane.spark.Native
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters
import org.apache.spark.sql.execution.vectorized.WritableColumnVector
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ColumnarArray, ColumnVector}
import org.apache.spark.unsafe.Platform

/**
 * A column that grows value by value, in the layout of lanes: an Arrow column with a validity
 * bitmap, 32-bit offsets and values. It has no bitmap until a row is NULL.
 */
private[crosslane] abstract class ColumnWriter(memory: Memory) {
  protected var rows = 0
  private var nulls = 0
  private val validity = new Buffer(memory)
  protected val values = new Buffer(memory)

  def children: Seq[ColumnWriter] = Nil

  /** Appends a value of a row or an array. It may be NULL. */
  final def write(from: SpecializedGetters, ordinal: Int): Unit = {
    if (from.isNullAt(ordinal)) {
      writeNull()
    } else {
      put(from, ordinal)
      if (nulls > 0) mark(valid = true)
      rows += 1
    }
  }

  final def writeNull(): Unit = {
    beginNulls()
    mark(valid = false)
    putNothing()
    rows += 1
  }

  /** Appends `count` rows of a column of Spark's, the first of which is `start`. */
  final def writeColumn(from: ColumnVector, start: Int, count: Int): Unit =
    if (!canCopy(from)) {
      val values = new ColumnarArray(from, start, count)
      var row = 0
      while (row < count) {
        write(values, row)
        row += 1
      }
    } else {
      copy(from, start, count)
      if (nulls == 0 && !from.hasNull) {
        rows += count
      } else {
        var row = start
        while (row < start + count) {
          val isNull = from.isNullAt(row)
          if (isNull) beginNulls()
          if (nulls > 0) mark(valid = !isNull)
          rows += 1
          row += 1
        }
      }
    }

  /** Appends `count` rows of a column of Spark's: `selected` has their numbers from `start` on. */
  final def writeSelected(from: ColumnVector, selected: Array[Int], start: Int, count: Int): Unit = {
    val values = new ColumnarArray(from, 0, Int.MaxValue)
    var index = start
    while (index < start + count) {
      write(values, selected(index))
      index += 1
    }
  }

  /** Whether [[copy]] can copy rows of a column. */
  protected def canCopy(from: ColumnVector): Boolean = false

  /** Copies the values of rows of a column, behind the values so far. A NULL may have any value. */
  protected def copy(from: ColumnVector, start: Int, count: Int): Unit =
    throw new UnsupportedOperationException("values of this type are copied one by one")

  /** Counts a NULL. With the first one, the rows so far get their bits. */
  private def beginNulls(): Unit = {
    if (nulls == 0) {
      validity.ensure(rows / 8 + 1)
      Platform.setMemory(validity.address, 0xff.toByte, rows / 8 + 1)
    }
    nulls += 1
  }

  private def mark(valid: Boolean): Unit = {
    val at = rows / 8
    if (rows % 8 == 0) {
      validity.ensure(at + 1)
      Platform.putByte(null, validity.address + at, 0)
    }
    val bit = 1 << (rows % 8)
    val byte = Platform.getByte(null, validity.address + at)
    Platform.putByte(null, validity.address + at, (if (valid) byte | bit else byte & ~bit).toByte)
  }

  /** Appends a value that is not NULL. */
  protected def put(from: SpecializedGetters, ordinal: Int): Unit

  /** Appends the values of a NULL. */
  protected def putNothing(): Unit

  /** The address of the offsets, or 0 if the type has none. */
  protected def offsetsAddress: Long = 0

  /** The number of bytes of values. Nested types have none. */
  protected def valueBytes: Long = 0

  /** The number of bytes that this column adds to a batch, about. */
  def bytes: Long = valueBytes + children.map(_.bytes).sum

  /**
   * Writes where the column lies (see `columns.rs`). Returns the address of the next column's
   * words.
   */
  final def writeTable(table: Long): Long = {
    Platform.putLong(null, table, rows)
    Platform.putLong(null, table + 8, if (nulls > 0) validity.address else 0)
    Platform.putLong(null, table + 16, offsetsAddress)
    Platform.putLong(null, table + 24, values.address)
    Platform.putLong(null, table + 32, valueBytes)
    children.foldLeft(table + 8 * Native.COLUMN_WORDS)((at, child) => child.writeTable(at))
  }

  /** The number of columns: this one and all below it. */
  final def columns: Int = 1 + children.map(_.columns).sum

  /**
   * Drops the rows. Buffers of more than `maxBytes` are freed, so that memory for one large value
   * does not stay.
   */
  def clear(maxBytes: Long): Unit = {
    rows = 0
    nulls = 0
    validity.shrink(maxBytes)
    values.shrink(maxBytes)
    children.foreach(_.clear(maxBytes))
  }

  def free(): Unit = {
    validity.free()
    values.free()
    children.foreach(_.free())
  }
}

private[crosslane] object ColumnWriter {

  /**
   * A writer for values of a type.
   *
   * @throws IllegalArgumentException if lanes do not have the type
   */
  def apply(dataType: DataType, memory: Memory): ColumnWriter = dataType match {
    case BooleanType => new BooleanWriter(memory)
    case ByteType =>
      new PlainWriter(memory, 1, Platform.BYTE_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putByte(null, next(), from.getByte(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getBytes(start, count)
      }
    case ShortType =>
      new PlainWriter(memory, 2, Platform.SHORT_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putShort(null, next(), from.getShort(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getShorts(start, count)
      }
    case IntegerType | DateType =>
      new PlainWriter(memory, 4, Platform.INT_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putInt(null, next(), from.getInt(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getInts(start, count)
      }
    case LongType | TimestampType | TimestampNTZType =>
      new PlainWriter(memory, 8, Platform.LONG_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putLong(null, next(), from.getLong(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getLongs(start, count)
      }
    case FloatType =>
      new PlainWriter(memory, 4, Platform.FLOAT_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putFloat(null, next(), from.getFloat(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getFloats(start, count)
      }
    case DoubleType =>
      new PlainWriter(memory, 8, Platform.DOUBLE_ARRAY_OFFSET) {
        override def put(from: SpecializedGetters, ordinal: Int): Unit = Platform.putDouble(null, next(), from.getDouble(ordinal))
        override def array(from: ColumnVector, start: Int, count: Int): AnyRef = from.getDoubles(start, count)
      }
    case decimal: DecimalType => new DecimalWriter(memory, decimal)
    case _: StringType => new StringWriter(memory)
    case BinaryType => new BinaryWriter(memory)
    case CalendarIntervalType => new IntervalWriter(memory)
    case ArrayType(element, _) => new ArrayWriter(memory, ColumnWriter(element, memory))
    case StructType(fields) => new StructWriter(memory, fields.toSeq.map(field => ColumnWriter(field.dataType, memory)))
    case MapType(key, value, _) => new MapWriter(memory, ColumnWriter(key, memory), ColumnWriter(value, memory))
    case other => throw new IllegalArgumentException(s"lanes have no type ${other.sql}")
  }
}

private final class BooleanWriter(memory: Memory) extends ColumnWriter(memory) {
  private def put(value: Boolean): Unit = {
    val at = rows / 8
    if (rows % 8 == 0) {
      values.ensure(at + 1)
      Platform.putByte(null, values.address + at, 0)
    }
    if (value) {
      val byte = Platform.getByte(null, values.address + at)
      Platform.putByte(null, values.address + at, (byte | 1 << (rows % 8)).toByte)
    }
  }
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = put(from.getBoolean(ordinal))
  override protected def putNothing(): Unit = put(value = false)
  override protected def valueBytes: Long = (rows + 7) / 8
}

/** Values of `width` bytes each. */
private abstract class FixedWriter(memory: Memory, width: Int) extends ColumnWriter(memory) {

  /** The address of the next value. */
  protected final def next(): Long = {
    val at = rows.toLong * width
    values.ensure(at + width)
    values.address + at
  }
  override protected def putNothing(): Unit = Platform.setMemory(next(), 0, width)
  override protected def valueBytes: Long = rows.toLong * width
}

/** Values that have the same bytes in arrays of Java, whose first value is at `offset`. */
private abstract class PlainWriter(memory: Memory, width: Int, offset: Long) extends FixedWriter(memory, width) {

  /** The values of some rows. */
  protected def array(from: ColumnVector, start: Int, count: Int): AnyRef

  // Other columns may refuse to read the value of a NULL.
  override protected def canCopy(from: ColumnVector): Boolean = !from.hasNull || from.isInstanceOf[WritableColumnVector]

  override protected def copy(from: ColumnVector, start: Int, count: Int): Unit = {
    val (at, length) = (rows.toLong * width, count.toLong * width)
    values.ensure(at + length)
    Platform.copyMemory(array(from, start, count), offset, null, values.address + at, length)
  }
}

/** A DECIMAL is an integer of 16 bytes, in little-endian order. */
private final class DecimalWriter(memory: Memory, decimal: DecimalType) extends FixedWriter(memory, 16) {
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val value = from.getDecimal(ordinal, decimal.precision, decimal.scale)
    val at = next()
    if (decimal.precision <= Decimal.MAX_LONG_DIGITS) {
      val unscaled = value.toUnscaledLong
      Platform.putLong(null, at, unscaled)
      Platform.putLong(null, at + 8, unscaled >> 63)
    } else {
      val unscaled = value.toJavaBigDecimal.unscaledValue
      Platform.putLong(null, at, unscaled.longValue)
      Platform.putLong(null, at + 8, unscaled.shiftRight(64).longValue)
    }
  }
}

private final class IntervalWriter(memory: Memory) extends FixedWriter(memory, 16) {
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val interval = from.getInterval(ordinal)
    val at = next()
    Platform.putInt(null, at, interval.months)
    Platform.putInt(null, at + 4, interval.days)
    Platform.putLong(null, at + 8, interval.microseconds)
  }
}

/** Values of any length, with offsets. */
private abstract class OffsetWriter(memory: Memory) extends ColumnWriter(memory) {
  private val offsets = new Buffer(memory)

  /** Sets where the values of the next row end. */
  protected final def end(at: Long): Unit = {
    if (at > Int.MaxValue) {
      throw new IllegalArgumentException("a batch of more than 2 GiB: make spark.crosslane.batchRows smaller")
    }
    offsets.ensure((rows + 2) * 4L)
    if (rows == 0) Platform.putInt(null, offsets.address, 0)
    Platform.putInt(null, offsets.address + (rows + 1) * 4L, at.toInt)
  }

  /** The end of the values so far. */
  protected final def ended: Int = if (rows == 0) 0 else Platform.getInt(null, offsets.address + rows * 4L)

  override protected def offsetsAddress: Long = {
    if (rows == 0) {
      offsets.ensure(4)
      Platform.putInt(null, offsets.address, 0)
    }
    offsets.address
  }
  override protected def putNothing(): Unit = end(ended)
  override def clear(maxBytes: Long): Unit = {
    super.clear(maxBytes)
    offsets.shrink(maxBytes)
  }
  override def free(): Unit = {
    super.free()
    offsets.free()
  }
}

private abstract class BytesWriter(memory: Memory) extends OffsetWriter(memory) {

  /** Makes room for the bytes of the next row, and returns their address. */
  protected final def append(length: Int): Long = {
    val from = ended.toLong
    end(from + length)
    values.ensure(from + length)
    values.address + from
  }
  override protected def valueBytes: Long = ended
}

private final class StringWriter(memory: Memory) extends BytesWriter(memory) {
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val value = from.getUTF8String(ordinal)
    Platform.copyMemory(value.getBaseObject, value.getBaseOffset, null, append(value.numBytes), value.numBytes)
  }
}

private final class BinaryWriter(memory: Memory) extends BytesWriter(memory) {
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val value = from.getBinary(ordinal)
    Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET, null, append(value.length), value.length)
  }
}

private final class ArrayWriter(memory: Memory, element: ColumnWriter) extends OffsetWriter(memory) {
  override val children: Seq[ColumnWriter] = Seq(element)
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val array = from.getArray(ordinal)
    val count = array.numElements()
    var index = 0
    while (index < count) {
      element.write(array, index)
      index += 1
    }
    end(ended.toLong + count)
  }
}

private final class StructWriter(memory: Memory, override val children: Seq[ColumnWriter]) extends ColumnWriter(memory) {
  private val fields = children.toArray
  override protected def canCopy(from: ColumnVector): Boolean = !from.hasNull
  override protected def copy(from: ColumnVector, start: Int, count: Int): Unit =
    fields.indices.foreach(index => fields(index).writeColumn(from.getChild(index), start, count))
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val struct = from.getStruct(ordinal, fields.length)
    var index = 0
    while (index < fields.length) {
      fields(index).write(struct, index)
      index += 1
    }
  }
  override protected def putNothing(): Unit = fields.foreach(_.writeNull())
}

/** A MAP is a list of STRUCTs of key and value. */
private final class MapWriter(memory: Memory, key: ColumnWriter, value: ColumnWriter) extends OffsetWriter(memory) {
  private val entries = new EntryWriter(memory, key, value)
  override val children: Seq[ColumnWriter] = Seq(entries)
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit = {
    val map = from.getMap(ordinal)
    val (keys, values, count) = (map.keyArray(), map.valueArray(), map.numElements())
    var index = 0
    while (index < count) {
      key.write(keys, index)
      value.write(values, index)
      entries.add()
      index += 1
    }
    end(ended.toLong + count)
  }
}

/** The STRUCTs of a MAP. The MAP writes their fields. */
private final class EntryWriter(memory: Memory, key: ColumnWriter, value: ColumnWriter) extends ColumnWriter(memory) {
  override val children: Seq[ColumnWriter] = Seq(key, value)
  def add(): Unit = rows += 1
  override protected def put(from: SpecializedGetters, ordinal: Int): Unit =
    throw new UnsupportedOperationException("entries are written by their MAP")
  override protected def putNothing(): Unit =
    throw new UnsupportedOperationException("an entry is not NULL")
}
