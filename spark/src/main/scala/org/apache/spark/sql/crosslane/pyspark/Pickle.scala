package org.apache.spark.sql.crosslane
package pyspark

import java.io.ByteArrayOutputStream
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.{ByteBuffer, ByteOrder}

/** Writes Python's pickles. It knows a few kinds of values. */
private final class Pickle {
  private val out = new ByteArrayOutputStream
  begin()

  private def begin(): Unit = out.write(Array[Byte](0x80.toByte, 3))

  private def number(value: Int): Array[Byte] =
    ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array

  def int(value: Int): Pickle = { out.write('J'); out.write(number(value)); this }

  def text(value: String): Pickle = {
    val encoded = value.getBytes(UTF_8)
    out.write('X'); out.write(number(encoded.length)); out.write(encoded); this
  }

  def bytes(value: Array[Byte]): Pickle = { out.write('B'); out.write(number(value.length)); out.write(value); this }

  def list(values: Seq[String]): Pickle = {
    out.write(']'); out.write('('); values.foreach(text); out.write('e'); this
  }

  def map(values: Map[String, String]): Pickle = {
    out.write('}'); out.write('('); values.foreach { case (key, value) => text(key).text(value) }; out.write('u'); this
  }

  /** The result of a call of a module's function. */
  def call(module: String, function: String)(arguments: Pickle => Pickle): Pickle = {
    out.write(s"c$module\n$function\n".getBytes(UTF_8))
    out.write('('); arguments(this); out.write('t'); out.write('R'); this
  }

  /** Ends a pickle. Another one may follow. */
  def end(): Pickle = {
    out.write('.')
    begin()
    this
  }

  /** All pickles that were ended. */
  def bytes: Array[Byte] = out.toByteArray.dropRight(2)
}
