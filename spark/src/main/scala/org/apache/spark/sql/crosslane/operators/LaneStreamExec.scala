package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.pyspark.PySpark
import org.apache.spark.sql.crosslane.tasks.LaneTask
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatchRow}

/**
 * Sends the child's rows through a stream function. The child's columns are the columns of its
 * input.
 */
private[crosslane] final case class LaneStreamExec(
    function: LaneFunction,
    output: Seq[Attribute],
    child: SparkPlan,
    isPySpark: Boolean = false)
    extends LaneExec {

  override def nodeName: String = "CrosslaneStream"
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override protected def stringArgs: Iterator[Any] =
    Iterator(shown(function.description.name, child.output, Seq(function)), output)

  override protected def doExecute(): RDD[InternalRow] = {
    val calls = Program(function, child.output)
    val program = if (isPySpark) PySpark.withBatches(calls) else calls
    val (childOutput, rowOutput, counted) = (child.output, output, metrics)
    executed(program) { (input, context) =>
      val task = new LaneTask(input, program, childOutput, None, counted, context)
      new LaneStreamExec.Rows(task, rowOutput, counted("numOutputRows"))
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): LaneStreamExec = copy(child = newChild)
}

private[crosslane] object LaneStreamExec {
  private final class Rows(task: LaneTask, output: Seq[Attribute], count: SQLMetric) extends Iterator[InternalRow] {
    private val made = new ColumnarBatchRow(Array.tabulate(output.length)(task.vectors(0).getChild(_): ColumnVector))
    private val toOutput = UnsafeProjection.create(output, output)
    private var row = 0
    private var rows = 0

    override def hasNext: Boolean = {
      while (row >= rows) {
        row = 0
        rows = 0
        if (!task.advance()) return false
        rows = task.rows
        count += rows
      }
      true
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException("no more rows")
      made.rowId = row
      row += 1
      toOutput(made)
    }
  }
}
