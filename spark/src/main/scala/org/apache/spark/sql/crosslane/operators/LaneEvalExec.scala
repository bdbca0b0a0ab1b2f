package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.crosslane.columns.LaneVector
import org.apache.spark.sql.crosslane.libraries.LaneFunction
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.pyspark.PySpark
import org.apache.spark.sql.crosslane.tasks.{LaneTask, RowInput}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatchRow}

/**
 * Calls scalar functions, which may be PySpark's. It outputs the needed columns of each row of the
 * child, and the results.
 *
 * @param kept the columns of the child that operators above need
 */
private[crosslane] final case class LaneEvalExec(
    functions: Seq[PythonUDF],
    results: Seq[Attribute],
    kept: Seq[Attribute],
    child: SparkPlan,
    isPySpark: Boolean = false,
    columnar: Boolean = false,
    condition: Option[Expression] = None)
    extends ColumnarExec {

  override def nodeName: String = "CrosslaneEval"
  override def output: Seq[Attribute] = kept ++ results
  override def producedAttributes: AttributeSet = AttributeSet(results)
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def outputOrdering: Seq[SortOrder] = child.outputOrdering

  override protected def stringArgs: Iterator[Any] = {
    val calls = functions.map { function =>
      val lanes = function.collect { case PythonUDF(_, lane: LaneFunction, _, _, _, _, _) => lane }
      shown(function.name, function.children, lanes)
    }
    Iterator[Any](calls.mkString("[", ", ", "]"), results) ++ condition.map("where " + _)
  }

  override protected def program: Program = {
    val calls = if (isAligned) Program.aligned(functions.head) else Program(functions)
    if (isPySpark) PySpark.withBatches(calls) else calls
  }

  override protected def made: Array[LaneVector] => Seq[ColumnVector] = {
    val outputs = program.outputs
    if (isAligned) vectors => Seq(vectors(0).getChild(0)) else vectors => outputs.map(vectors(_))
  }

  override protected def doExecute(): RDD[InternalRow] = {
    require(!columnar, "the results are columns")
    val (calls, childOutput, keeps, columns, toResults, counted) = (program, child.output, kept, results, made, metrics)
    executed(calls, child.execute()) { (rows, context) =>
      val input = new RowInput(rows, calls, childOutput, Some(keeps), context.partitionId())
      val task = new LaneTask(input, calls, counted, context)
      new LaneEvalExec.Rows(task, toResults(task.vectors), keeps, columns, counted("numOutputRows"))
    }
  }

  /** Whether the only function is called with an iterator of all batches. */
  private def isAligned: Boolean = functions.head.func match {
    case lane: LaneFunction => lane.description.iterates
    case _ => false
  }

  override protected def above(child: SparkPlan, condition: Option[Expression]): SparkPlan =
    copy(child = child, columnar = true, condition = condition)

  override protected def withNewChildInternal(newChild: SparkPlan): LaneEvalExec = copy(child = newChild)
}

private[crosslane] object LaneEvalExec {

  /** The rows of the task's batches, each with its results. */
  private final class Rows(
      task: LaneTask,
      vectors: Seq[ColumnVector],
      keeps: Seq[Attribute],
      results: Seq[Attribute],
      count: SQLMetric)
      extends Iterator[InternalRow] {
    private val kept = new UnsafeRow(keeps.length)
    private val made = new ColumnarBatchRow(vectors.toArray)
    private val joined = new JoinedRow(kept, made)
    private val toOutput = UnsafeProjection.create(keeps ++ results, keeps ++ results)
    private var row = 0
    private var rows = 0

    override def hasNext: Boolean = row < rows || {
      row = 0
      rows = if (task.advance()) task.rows else 0
      count += rows
      rows > 0
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException("no more rows")
      task.point(kept, row)
      made.rowId = row
      row += 1
      toOutput(joined)
    }
  }
}
