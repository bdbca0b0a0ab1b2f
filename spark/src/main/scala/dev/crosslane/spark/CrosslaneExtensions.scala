package dev.crosslane.spark

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.crosslane.Plugin

/**
 * Makes functions in Python, Ruby and JavaScript callable from Spark: set `spark.sql.extensions` to
 * this class's name, and `spark.crosslane.functions` to the files, with commas between them.
 */
class CrosslaneExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = Plugin.install(extensions)
}
