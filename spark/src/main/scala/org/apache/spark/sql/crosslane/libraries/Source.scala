package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.CrosslaneException
import java.io.File
import java.nio.file.{Files, Paths}
import java.security.MessageDigest
import org.apache.spark.SparkFiles

/**
 * The origin of a library's functions. A plan contains it, and it means the same on every executor.
 */
private[crosslane] sealed trait Source extends Serializable {

  /** The file's name, or a name for the functions of a program. */
  def name: String

  /** Differs for each version of the library. */
  def digest: String
}

/** A file. Spark has sent it to the executors. */
private[crosslane] final case class FileSource(path: String, digest: String) extends Source {
  override def name: String = Paths.get(path).getFileName.toString

  /**
   * The file on this machine: at its own path, so that it finds the files beside it, or where Spark
   * has put its copy.
   *
   * @throws CrosslaneException if there is no such file, or it has another content
   */
  def here: String = {
    val paths = Seq(path, SparkFiles.get(name))
    paths.find(one => new File(one).isFile && FileSource.digest(one) == digest).getOrElse {
      throw new CrosslaneException(
        s"$name is not on this machine as it was loaded (looked at ${paths.mkString(" and ")}); was it changed since, or do two " +
          "files have this name?")
    }
  }
}

private[crosslane] object FileSource {
  def digest(path: String): String = Source.digest(Files.readAllBytes(Paths.get(path)))
}

/**
 * Functions that a Python program has pickled. `python` is their interpreter, if it is not the
 * usual one.
 */
private[crosslane] final class PickleSource(val name: String, val pickles: Seq[Array[Byte]], val python: Option[String])
    extends Source {
  override val digest: String = Source.digest(pickles.reduce(_ ++ _) ++ python.getOrElse("").getBytes)

  // The digest stands for the bytes.
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
