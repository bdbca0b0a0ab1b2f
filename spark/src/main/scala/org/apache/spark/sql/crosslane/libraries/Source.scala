package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.CrosslaneException
import java.io.File
import java.nio.file.{Files, Paths}
import java.security.MessageDigest
import org.apache.spark.SparkFiles

/** Where the functions of a library come from. It travels with the plan, and means the same on every executor. */
private[crosslane] sealed trait Source extends Serializable {

  /** The file's name, or what a program's functions are called. */
  def name: String

  /** Tells the library from any other version of it. */
  def digest: String
}

/** A file, which Spark has sent to the executors. */
private[crosslane] final case class FileSource(path: String, digest: String) extends Source {
  override def name: String = Paths.get(path).getFileName.toString

  /**
   * The file on this machine: where it was loaded from, so that it finds the files beside it, or where Spark has put it.
   *
   * @throws CrosslaneException if there is no such file, or it is another one
   */
  def here: String = {
    val places = Seq(path, SparkFiles.get(name))
    places.find(place => new File(place).isFile && FileSource.digest(place) == digest).getOrElse {
      throw new CrosslaneException(
        s"$name is not on this machine as it was loaded (looked at ${places.mkString(" and ")}); was it changed since, or do two " +
          "files have this name?")
    }
  }
}

private[crosslane] object FileSource {
  def digest(path: String): String = Source.digest(Files.readAllBytes(Paths.get(path)))
}

/** Functions that a Python program has pickled. `python` is the interpreter that they are for, if it is not the usual one. */
private[crosslane] final class PickleSource(val name: String, val pickles: Seq[Array[Byte]], val python: Option[String])
    extends Source {
  override val digest: String = Source.digest(pickles.reduce(_ ++ _) ++ python.getOrElse("").getBytes)

  // The bytes are compared by their digest.
  override def equals(other: Any): Boolean = other match {
    case source: PickleSource => name == source.name && digest == source.digest
    case _ => false
  }
  override def hashCode: Int = digest.hashCode
}

private[crosslane] object PickleSource {
  def apply(name: String, pickles: Seq[Array[Byte]], python: Option[String] = None): PickleSource =
    new PickleSource(name, pickles, python)
}

private[crosslane] object Source {
  def digest(bytes: Array[Byte]): String =
    MessageDigest.getInstance("SHA-256").digest(bytes).map("%02x".format(_)).mkString
}
