package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.crosslane.planning.{LaneGenerator, Program}
import org.apache.spark.sql.crosslane.tasks.{LaneTask, RowInput}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatchRow}

/**
 * Calls a table function with each row of the child. It outputs the row's required columns with
 * each row of the table.
 */
private[crosslane] final case class LaneGenerateExec(
    generator: LaneGenerator,
    required: Seq[Attribute],
    outer: Boolean,
    made: Seq[Attribute],
    child: SparkPlan)
    extends LaneExec {

  override def nodeName: String = "CrosslaneGenerate"
  override def output: Seq[Attribute] = required ++ made
  override def producedAttributes: AttributeSet = AttributeSet(made)
  override def outputPartitioning: Partitioning = child.outputPartitioning

  override protected def stringArgs: Iterator[Any] = {
    val function = generator.function
    Iterator(shown(function.description.name, generator.children, Seq(function)), required, outer, made)
  }

  override protected def doExecute(): RDD[InternalRow] = {
    val (program, childOutput, rowOutput, counted) = (Program(generator), child.output, output, metrics)
    val (columns, isOuter, keeps) = (made, outer, required.nonEmpty || outer)
    executed(program, child.execute()) { (rows, context) =>
      val input = new RowInput(rows, program, childOutput, if (keeps) Some(childOutput) else None, context.partitionId())
      val task = new LaneTask(input, program, counted, context)
      new LaneGenerateExec.Rows(task, childOutput, columns, rowOutput, keeps, isOuter, counted("numOutputRows"))
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): LaneGenerateExec = copy(child = newChild)
}

private[crosslane] object LaneGenerateExec {

  /** The rows of the tables of all rows. */
  private final class Rows(
      task: LaneTask,
      childOutput: Seq[Attribute],
      columns: Seq[Attribute],
      output: Seq[Attribute],
      keeps: Boolean,
      outer: Boolean,
      count: SQLMetric)
      extends Iterator[InternalRow] {
    private val kept = new UnsafeRow(childOutput.length)
    private val made = new ColumnarBatchRow(Array.tabulate(columns.length)(task.vectors(0).getChild(_): ColumnVector))
    private val nothing = new GenericInternalRow(columns.length)
    private val joined = new JoinedRow
    private val toOutput = UnsafeProjection.create(output, (if (keeps) childOutput else Nil) ++ columns)

    /** The next row of the current answer, and its number of rows. */
    private var row = 0
    private var rows = 0

    /** With `outer`: the range of the batch's rows whose tables are empty. */
    private var empty = 0
    private var emptyEnd = 0

    override def hasNext: Boolean = {
      while (empty >= emptyEnd && row >= rows) {
        // The row of this answer has a table with rows.
        if (outer && rows > 0) empty = task.row + 1
        if (outer && task.batchIsDone) empty = 0
        row = 0
        rows = 0
        if (!task.advance()) return false
        rows = task.rows
        count += rows
        if (outer) {
          emptyEnd = if (rows > 0) task.row else task.batchRows
          count += math.max(0, emptyEnd - empty)
        }
      }
      true
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException("no more rows")
      if (empty < emptyEnd) {
        task.point(kept, empty)
        empty += 1
        return toOutput(joined(kept, nothing))
      }
      made.rowId = row
      row += 1
      if (!keeps) return toOutput(made)
      task.point(kept, task.row)
      toOutput(joined(kept, made))
    }
  }
}
