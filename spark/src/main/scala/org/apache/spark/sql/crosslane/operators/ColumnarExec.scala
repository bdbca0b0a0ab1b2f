package org.apache.spark.sql.crosslane
package operators

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.crosslane.columns.LaneVector
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.tasks.{ColumnInput, LaneTask, RowInput}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.vectorized.{ColumnarBatch, ColumnVector}

/** An operator that can read columns, and whose results can stay columns. */
private[crosslane] trait ColumnarExec extends LaneExec {

  /** Whether its results stay columns. It reads columns then if its child has them. */
  def columnar: Boolean

  /** The columns of the child that are in the output, before the results. */
  def kept: Seq[Attribute]

  /** Which rows of the child's columns it reads, if not all of them. */
  def condition: Option[Expression]

  /** What happens with each batch. */
  protected def program: Program

  /** The columns of results, from those of the program. It must not refer to the operator. */
  protected def made: Array[LaneVector] => Seq[ColumnVector]

  /** The same operator above another child, with results that stay columns. */
  protected def above(child: SparkPlan, condition: Option[Expression]): SparkPlan

  /**
   * The same operator with results that stay columns, if it can be.
   *
   * @param columns a node with the child's columns, if there is one, and which of its rows are the child's
   */
  final def withColumns(columns: Option[(SparkPlan, Option[Expression])]): Option[SparkPlan] =
    columns match {
      case _ if columnar => None
      case Some((node, condition)) if ColumnInput.canKeep(kept) => Some(above(node, condition))
      case _ if kept.isEmpty => Some(above(child, None))
      case _ => None
    }

  override def supportsColumnar: Boolean = columnar
  override def supportsRowBased: Boolean = !columnar

  override protected def doExecuteColumnar(): RDD[ColumnarBatch] = {
    val (calls, childOutput, keeps, toResults, counted) = (program, child.output, kept, made, metrics)
    val only = condition
    if (child.supportsColumnar) {
      executed(calls, child.executeColumnar()) { (columns, context) =>
        val input = new ColumnInput(columns, calls, childOutput, keeps, only, context.partitionId())
        val task = new LaneTask(input, calls, counted, context)
        new ColumnarExec.Batches(task, input.kept, toResults(task.vectors), counted("numOutputRows"))
      }
    } else {
      require(keeps.isEmpty && only.isEmpty, s"the input of $nodeName has no columns any more")
      executed(calls, child.execute()) { (rows, context) =>
        val input = new RowInput(rows, calls, childOutput, None, context.partitionId())
        val task = new LaneTask(input, calls, counted, context)
        new ColumnarExec.Batches(task, Nil, toResults(task.vectors), counted("numOutputRows"))
      }
    }
  }
}

private[crosslane] object ColumnarExec {

  /**
   * The answers of a task. Each of them can be read until the next one is wanted.
   *
   * @param kept the columns of a batch that belong to its answers
   */
  private final class Batches(task: LaneTask, kept: Seq[ColumnInput.Kept], results: Seq[ColumnVector], count: SQLMetric)
      extends Iterator[ColumnarBatch] {
    private val keptVectors = kept.map(column => new LaneVector(column.dataType))
    private val batch = new ColumnarBatch((keptVectors ++ results).toArray)
    private var isFound = false

    override def hasNext: Boolean = {
      while (!isFound && task.advance()) isFound = task.rows > 0
      isFound
    }

    override def next(): ColumnarBatch = {
      if (!hasNext) throw new NoSuchElementException("no more results")
      isFound = false
      kept.indices.foreach(index => task.pointColumn(keptVectors(index), kept(index).column))
      batch.setNumRows(task.rows)
      count += task.rows
      batch
    }
  }
}
