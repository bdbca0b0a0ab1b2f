package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.{CrosslaneException, Native}
import java.io.File
import org.apache.spark.SparkEnv
import scala.sys.process.{Process, ProcessLogger}

/**
 * The native half. Its file is in the Python package `crosslane` of this machine, beside the
 * guests.
 */
private object NativeLibrary {
  private val Name = "libcrosslane_jni.so"

  /** The version of this jar. */
  private val Version = "0.1.0"

  private lazy val loaded: Unit = {
    val folder = SparkEnv.get.conf.getOption("spark.crosslane.home").getOrElse(installed())
    val file = new File(folder, Name)
    if (!file.isFile) {
      throw new CrosslaneException(s"there is no $Name in $folder: the package crosslane there was built without Spark's part")
    }
    System.load(file.getPath)
    if (Native.version() != Version) {
      throw new CrosslaneException(
        s"the jar is of crosslane $Version, and the package in $folder of ${Native.version()}: install the same version on all machines")
    }
  }

  /** Makes sure that it is loaded. After a failure, the next call tries again. */
  def require(): Unit = loaded

  private def installed(): String = {
    val python = Settings.python(SparkEnv.get.conf)
    val (out, errors) = (new StringBuilder, new StringBuilder)
    val script = "import crosslane; print(crosslane.__path__[0])"
    val log = ProcessLogger(line => out ++= line, line => errors ++= line + "\n")
    val ended =
      try Process(Seq(python, "-P", "-c", script)).!(log)
      catch { case error: java.io.IOException => errors ++= error.getMessage; -1 }
    if (ended != 0) {
      throw new CrosslaneException(
        s"the package crosslane is not installed for $python on ${java.net.InetAddress.getLocalHost.getHostName}: install it there, or " +
          s"name another interpreter with spark.crosslane.python=/path/to/python\n${errors.toString.trim}")
    }
    out.toString
  }
}
