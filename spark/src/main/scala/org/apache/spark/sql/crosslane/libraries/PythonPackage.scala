package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.CrosslaneException
import java.util.concurrent.ConcurrentHashMap
import org.apache.spark.internal.Logging
import scala.sys.process.{Process, ProcessLogger}

/** The Python package `crosslane` of an interpreter on this machine. */
private[crosslane] object PythonPackage extends Logging {

  /**
   * The folder of the package.
   *
   * @throws CrosslaneException if the interpreter does not have it, or another version of it
   */
  def folder(python: String): String =
    ran(python, "import crosslane; print(crosslane.__version__, crosslane.__path__[0])") match {
      case Right(s"$version $folder") =>
        if (version != NativeLibrary.Version) throw new NativeLibrary.AnotherVersion(folder, version)
        folder
      case Right(other) => throw new CrosslaneException(s"$python printed $other in place of its package crosslane")
      case Left(errors) =>
        throw new CrosslaneException(
          s"the package crosslane is not installed for $python on ${java.net.InetAddress.getLocalHost.getHostName}: install it there, or " +
            s"name another interpreter with spark.crosslane.python=/path/to/python\n$errors")
    }

  /** Whether the package has a module. Each interpreter is asked once. */
  def contains(python: String, module: String): Boolean = known.computeIfAbsent(
    (python, module),
    _ => {
      val answer = ran(python, s"import importlib.util; print(importlib.util.find_spec('$module') is not None)")
      answer.left.foreach(errors => logWarning(s"Spark starts the workers of $python itself: it has no module $module\n$errors"))
      answer == Right("True")
    })

  private val known = new ConcurrentHashMap[(String, String), Boolean]

  /** What a script prints, or its errors. */
  private def ran(python: String, script: String): Either[String, String] = {
    val (out, errors) = (new StringBuilder, new StringBuilder)
    val log = ProcessLogger(line => out ++= line, line => errors ++= line + "\n")
    val ended =
      try Process(Seq(python, "-P", "-c", script)).!(log)
      catch { case error: java.io.IOException => errors ++= error.getMessage; -1 }
    if (ended == 0) Right(out.toString) else Left(errors.toString.trim)
  }
}
