package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.{CrosslaneException, Native}
import java.io.File
import org.apache.spark.SparkEnv

/**
 * The native half. Its file is in the Python package `crosslane` of this machine, beside the
 * guests.
 */
private object NativeLibrary {
  private val Name = "libcrosslane_jni.so"

  /** The version of this jar. */
  private val Version = "0.1.0"

  private lazy val loaded: Unit = {
    val folder =
      SparkEnv.get.conf.getOption("spark.crosslane.home").getOrElse(PythonPackage.folder(Settings.python(SparkEnv.get.conf)))
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
}
