package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.CrosslaneException
import java.io.File
import java.nio.file.{Files, Paths}
import java.security.MessageDigest
import org.apache.spark.api.python.PythonBroadcast
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.crosslane.pyspark.DeclaredFunction
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

/** Functions that a Python program has pickled. */
private[crosslane] sealed trait Pickled extends Source {

  /** The interpreter of the functions, if it is not the usual one. */
  def python: Option[String]

  /** The pickles for this machine. */
  def pickles: Seq[Array[Byte]]

  /** Modules that many such libraries need, so that one process imports them for all. */
  def modules: Seq[String]

  // The digest stands for the bytes.
  override def equals(other: Any): Boolean = other match {
    case source: Pickled => name == source.name && digest == source.digest
    case _ => false
  }
  override def hashCode: Int = digest.hashCode
}

/** A function that a program has registered. */
private[crosslane] final class Registered(val name: String, pickle: Array[Byte]) extends Pickled {
  override val digest: String = Source.digest(pickle)
  override def python: Option[String] = None
  override def pickles: Seq[Array[Byte]] = Seq(pickle)
  override def modules: Seq[String] = Seq.empty
}

/**
 * Functions of a query that PySpark has pickled.
 *
 * @param includes the names of the files that were added with `addPyFile`
 */
private[crosslane] final class QueryFunctions(
    val name: String,
    functions: Seq[DeclaredFunction],
    interpreter: String,
    includes: Seq[String],
    broadcasts: Seq[Broadcast[PythonBroadcast]])
    extends Pickled {
  override val digest: String = Source.digest(
    functions.map(_.pickle(Seq.empty, "", Map.empty)).reduce(_ ++ _) ++
      (interpreter +: (includes ++ broadcasts.map(_.id.toString))).mkString("\n").getBytes)

  override def python: Option[String] = Some(interpreter)

  override def pickles: Seq[Array[Byte]] = {
    val root = SparkFiles.getRootDirectory()
    // The first is the working directory. Spark's workers have the others, in this order.
    val folders = "" +: (includes.reverse.map(new File(root, _).getPath) :+ root)
    val values = broadcasts.map(one => one.id.toString -> one.value.path).toMap
    functions.map(_.pickle(folders, root, values))
  }

  override def modules: Seq[String] = functions.flatMap(_.modules).distinct

  /**
   * The values of the broadcast variables. As long as they are referenced, Spark keeps their files.
   *
   * @throws SparkException if one was destroyed
   */
  def values: Seq[AnyRef] = broadcasts.map(_.value)
}

private[crosslane] object Source {
  def digest(bytes: Array[Byte]): String =
    MessageDigest.getInstance("SHA-256").digest(bytes).map("%02x".format(_)).mkString
}
