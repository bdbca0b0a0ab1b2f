package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.{CrosslaneException, Native}
import java.io.{File, InputStream}
import java.nio.file.Files
import org.apache.spark.internal.Logging
import org.apache.spark.SparkEnv
import scala.util.Try

/**
 * The native half. The jar may have it for some kinds of machines. Otherwise its file is in the
 * folder of the Python package `crosslane` of this machine, where the guests are.
 */
private[crosslane] object NativeLibrary extends Logging {
  private val Name = "libcrosslane_jni.so"

  /** The version of this jar. */
  val Version = "0.1.0"

  /** The package in a folder has another version than this jar. */
  final class AnotherVersion(folder: String, version: String)
      extends CrosslaneException(
        s"the jar is of crosslane $Version, and the package in $folder of $version: install the same version on all machines")

  /** The folder of the package. The interpreter is asked, unless a setting names the folder. */
  private def home: Try[String] = {
    val conf = SparkEnv.get.conf
    Try(conf.getOption("spark.crosslane.home").getOrElse(PythonPackage.folder(Settings.python(conf))))
  }

  /** The library for this kind of machine in the jar, if the jar has it. */
  private def inJar: Option[InputStream] = {
    val machine = System.getProperty("os.arch") match {
      case "amd64" => "x86_64"
      case other => other
    }
    Option(getClass.getResourceAsStream(s"/dev/crosslane/spark/linux-$machine/$Name"))
  }

  private lazy val loaded: Unit = {
    val folder = home
    folder.failed.foreach { case error: AnotherVersion => throw error; case _ => }
    inJar match {
      case Some(library) =>
        // No other user can put files beside it.
        val own = Files.createTempDirectory("crosslane-native")
        val copy = own.resolve(Name)
        try {
          Files.copy(library, copy)
          System.load(copy.toString)
        } finally {
          library.close()
          // It stays in memory.
          Files.deleteIfExists(copy)
          Files.delete(own)
        }
        folder.failed.foreach(error =>
          logWarning(s"Functions in Python, and hosts of other languages, are not found here: ${error.getMessage}"))
        Native.home(folder.getOrElse(own.toString))
      case None => folder.fold(throw _, load)
    }
  }

  private def load(folder: String): Unit = {
    val file = new File(folder, Name)
    if (!file.isFile) {
      throw new CrosslaneException(s"there is no $Name in $folder: the package crosslane there was built without Spark's part")
    }
    System.load(file.getPath)
    if (Native.version() != Version) throw new AnotherVersion(folder, Native.version())
  }

  /** Makes sure that it is loaded. After a failure, the next call tries again. */
  def require(): Unit = loaded
}
