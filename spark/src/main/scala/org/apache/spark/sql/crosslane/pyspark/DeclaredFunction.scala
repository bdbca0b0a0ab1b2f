package org.apache.spark.sql.crosslane
package pyspark

import org.apache.spark.api.python.PythonEvalType

/**
 * A function that PySpark has pickled, as `crosslane._engines.spark.declare.declare` takes it.
 *
 * @param signature the types in SQL
 * @param argumentTypes Spark's types, as JSON
 * @param conf the settings of the query that concern Python
 */
private[crosslane] final case class DeclaredFunction(
    name: String,
    signature: String,
    command: Array[Byte],
    evalType: Int,
    argumentTypes: Seq[String],
    returnType: String,
    conf: Map[String, String]) {

  /** The modules that `declare` needs for such a function. */
  def modules: Seq[String] =
    if (evalType == PythonEvalType.SQL_BATCHED_UDF) DeclaredFunction.ForRows
    else DeclaredFunction.ForRows ++ DeclaredFunction.ForColumns

  /**
   * The search path, and a call of `declare`, as two pickles.
   *
   * @param folders the search path
   * @param files the folder of the files that Spark has sent
   * @param broadcasts the files of broadcast variables, by their numbers
   */
  def pickle(folders: Seq[String], files: String, broadcasts: Map[String, String]): Array[Byte] =
    new Pickle()
      .list(folders)
      .end()
      .call("crosslane._engines.spark.declare", "declare") {
        _.text(name)
          .text(signature)
          .bytes(command)
          .int(evalType)
          .list(argumentTypes)
          .text(returnType)
          .map(conf)
          .text(files)
          .map(broadcasts)
      }
      .end()
      .bytes
}

private object DeclaredFunction {
  private val ForRows = Seq("crosslane._engines.spark.declare", "pyspark.core.broadcast")
  private val ForColumns = Seq("pandas", "pyarrow.compute", "pyspark.worker", "pyspark.sql.pandas.types")
}
