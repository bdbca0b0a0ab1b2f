package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.columns.LaneVector
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.pyspark.PySpark
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.vectorized.ColumnVector

/**
 * Sends columns of the child's rows through a stream function.
 */
private[crosslane] final case class LaneStreamExec(
    function: LaneFunction,
    columns: Seq[Attribute],
    output: Seq[Attribute],
    child: SparkPlan,
    isPySpark: Boolean = false,
    columnar: Boolean = false,
    condition: Option[Expression] = None)
    extends ColumnarExec {

  override def nodeName: String = "CrosslaneStream"
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override protected def stringArgs: Iterator[Any] =
    Iterator[Any](shown(function.description.name, columns, Seq(function)), output) ++ condition.map("where " + _)

  override def kept: Seq[Attribute] = Nil

  override protected def program: Program = {
    val calls = Program(function, columns)
    if (isPySpark) PySpark.withBatches(calls) else calls
  }

  override protected def made: Array[LaneVector] => Seq[ColumnVector] = {
    val count = output.length
    vectors => Seq.tabulate(count)(vectors(0).getChild(_))
  }

  override protected def doExecute(): RDD[InternalRow] =
    throw new UnsupportedOperationException("the results are columns, because nothing is kept")

  override protected def above(child: SparkPlan, condition: Option[Expression]): SparkPlan =
    copy(child = child, columnar = true, condition = condition)

  override protected def withNewChildInternal(newChild: SparkPlan): LaneStreamExec = copy(child = newChild)
}
