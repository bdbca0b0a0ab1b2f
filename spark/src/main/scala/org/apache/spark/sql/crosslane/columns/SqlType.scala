package org.apache.spark.sql.crosslane
package columns

import org.apache.spark.sql.types._
import scala.util.Try

/** The names of Spark's types in Crosslane's signatures. */
private[crosslane] object SqlType {

  /**
   * The name of a type.
   *
   * @throws IllegalArgumentException if lanes do not have the type
   */
  def apply(dataType: DataType): String = dataType match {
    case BooleanType => "BOOLEAN"
    case ByteType => "TINYINT"
    case ShortType => "SMALLINT"
    case IntegerType => "INTEGER"
    case LongType => "BIGINT"
    case FloatType => "FLOAT"
    case DoubleType => "DOUBLE"
    case _: StringType => "VARCHAR"
    case BinaryType => "BLOB"
    case DateType => "DATE"
    case TimestampType => "TIMESTAMPTZ"
    case TimestampNTZType => "TIMESTAMP"
    case CalendarIntervalType => "INTERVAL"
    case decimal: DecimalType => s"DECIMAL(${decimal.precision},${decimal.scale})"
    case ArrayType(element, _) => s"${apply(element)}[]"
    case MapType(key, value, _) => s"MAP(${apply(key)}, ${apply(value)})"
    case StructType(fields) if fields.nonEmpty =>
      fields.map(field => s"${quoted(field.name)} ${apply(field.dataType)}").mkString("STRUCT(", ", ", ")")
    case other => throw new IllegalArgumentException(s"lanes have no type ${other.sql}")
  }

  /** Whether lanes have a type. */
  def isSupported(dataType: DataType): Boolean = Try(apply(dataType)).isSuccess

  /** A name with quotes, as SQL has it. */
  def quoted(name: String): String = "\"" + name.replace("\"", "\"\"") + "\""
}
