package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.CrosslaneException
import java.io.File
import org.apache.spark.{SparkConf, SparkContext, SparkEnv}

/** The settings of users, such as `spark.crosslane.<name>`. */
private[crosslane] object Settings {

  /** The settings of the native half, with the programs of languages. */
  private val names =
    Seq(
      "python",
      "ruby",
      "javascript",
      "lua",
      "warm_lanes",
      "idle_timeout",
      "spin",
      "ring_size",
      "largest_batch",
      "load_timeout",
      "stuck_timeout",
      "end_stuck",
      "wasm",
      "sandbox",
      "allow_read",
      "allow_write",
      "allow_net",
      "allow_env",
      "allow_run")

  /** Settings of Spark for its own workers that have the same meaning. */
  private def ofSpark(conf: SparkConf): Map[String, String] = {
    val (timeout, ends) = ("spark.python.worker.idleTimeoutSeconds", "spark.python.worker.killOnIdleTimeout")
    Map("stuck_timeout" -> conf.getTimeAsSeconds(timeout, "0").toString, "end_stuck" -> conf.getBoolean(ends, false).toString)
  }

  /** The settings for the native half. Names and values alternate. */
  def all(conf: SparkConf): Seq[String] = {
    val chosen = names.flatMap(name => conf.getOption(s"spark.crosslane.$name").map(name -> _)).toMap
    val defaults = Map("warm_lanes" -> conf.getInt("spark.executor.cores", 1).toString, "python" -> python(conf))
    (defaults ++ ofSpark(conf) ++ chosen).toSeq.flatMap { case (name, value) => Seq(name, value) }
  }

  /**
   * The interpreter of PySpark's workers. On the driver, it is the interpreter of the driver's
   * program.
   */
  def python(conf: SparkConf): String = {
    val isDriver = Option(SparkEnv.get).exists(_.executorId == SparkContext.DRIVER_IDENTIFIER)
    def ofDriver = conf
      .getOption("spark.pyspark.driver.python")
      .orElse(sys.env.get("PYSPARK_DRIVER_PYTHON"))
      .filter(path => isDriver && new File(path).getName.startsWith("python"))
    conf
      .getOption("spark.crosslane.python")
      .orElse(ofDriver)
      .orElse(conf.getOption("spark.pyspark.python"))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .getOrElse("python3")
  }

  def batchRows(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.batchRows", 8192)
  def batchBytes(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.batchBytes", 4 << 20)
  def depth(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.depth", 2)

  /**
   * How long an idle worker lives, by the settings for the native half. That refuses what is no
   * number of seconds.
   */
  def idleMilliseconds(settings: Seq[String]): Long = {
    val chosen = settings.grouped(2).collectFirst { case Seq("idle_timeout", seconds) => seconds }
    chosen.flatMap(_.toDoubleOption).map(seconds => (seconds * 1000).toLong).getOrElse(60000L)
  }

  private def atLeastOne(conf: SparkConf, name: String, default: Int): Int = {
    val value = conf.getInt(name, default)
    if (value < 1) throw new CrosslaneException(s"$name is at least 1, not $value")
    value
  }
}
