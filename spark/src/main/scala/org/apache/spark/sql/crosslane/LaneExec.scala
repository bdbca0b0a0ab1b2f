package org.apache.spark.sql.crosslane

import org.apache.spark.TaskContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{SparkPlan, UnaryExecNode}
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.vectorized.{ColumnVector, ColumnarBatchRow}

/** An operator that uses functions over lanes. */
private[crosslane] trait LaneExec extends UnaryExecNode {

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"),
    "batches" -> SQLMetrics.createMetric(sparkContext, "number of batches"),
    "sentBytes" -> SQLMetrics.createSizeMetric(sparkContext, "bytes sent to workers"),
    "functionTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in the functions"),
    "callTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in calls"),
    "waitTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time waiting for results"),
    "errors" -> SQLMetrics.createMetric(sparkContext, "rows NULL because of errors"),
    "retries" -> SQLMetrics.createMetric(sparkContext, "calls tried again"),
    "workersStarted" -> SQLMetrics.createMetric(sparkContext, "workers started"),
    "workersLost" -> SQLMetrics.createMetric(sparkContext, "workers lost"))

  /** As `slug(title) [python]`, in EXPLAIN. */
  protected def shown(name: String, arguments: Seq[Expression], functions: Seq[LaneFunction]): String =
    s"$name(${arguments.mkString(", ")}) [${functions.map(_.description.language).distinct.mkString(", ")}]"

  /** The rows of the tasks: what `run` makes of each partition's rows. */
  protected def executed(
      program: Program)(run: (Iterator[InternalRow], TaskContext) => Iterator[InternalRow]): RDD[InternalRow] = {
    val alsoOfNone = program.iterates
    child.execute().mapPartitions(input => if (alsoOfNone || input.hasNext) run(input, TaskContext.get()) else Iterator.empty)
  }
}

/**
 * Calls scalar functions, which may be PySpark's: each row of the child, and behind it the results.
 *
 * @param kept the columns of the child that somebody wants
 */
private[crosslane] final case class LaneEvalExec(
    functions: Seq[PythonUDF],
    results: Seq[Attribute],
    kept: Seq[Attribute],
    child: SparkPlan,
    isPySpark: Boolean = false)
    extends LaneExec {

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
    Iterator(calls.mkString("[", ", ", "]"), results)
  }

  override protected def doExecute(): RDD[InternalRow] = {
    val calls = if (isAligned) Program.aligned(functions.head) else Program(functions)
    val program = if (isPySpark) PySpark.withBatches(calls) else calls
    val (childOutput, keeps, made, counted, aligned) = (child.output, kept, results, metrics, isAligned)
    executed(program) { (input, context) =>
      val task = new LaneTask(input, program, childOutput, Option(keeps).filter(_.nonEmpty), counted, context)
      val vectors = if (aligned) Seq(task.vectors(0).getChild(0)) else program.outputs.map(task.vectors(_): ColumnVector)
      new LaneEvalExec.Rows(task, vectors, keeps, made, counted("numOutputRows"))
    }
  }

  /** Whether its only function is called with an iterator of all batches. */
  private def isAligned: Boolean = functions.head.func match {
    case lane: LaneFunction => lane.description.iterates
    case _ => false
  }

  override protected def withNewChildInternal(newChild: SparkPlan): LaneEvalExec = copy(child = newChild)
}

private object LaneEvalExec {

  /** Each row of the task's batches, and its results. */
  private final class Rows(
      task: LaneTask,
      vectors: Seq[ColumnVector],
      keeps: Seq[Attribute],
      results: Seq[Attribute],
      count: SQLMetric)
      extends Iterator[InternalRow] {
    private val kept = new UnsafeRow(keeps.length)
    private val made = new ColumnarBatchRow(vectors.toArray)
    private val joined = if (keeps.isEmpty) made else new JoinedRow(kept, made)
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
      if (keeps.nonEmpty) task.point(kept, row)
      made.rowId = row
      row += 1
      toOutput(joined)
    }
  }
}

/** Calls a table function with each row of the child: the row's columns that are required, and the table's rows. */
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
    executed(program) { (input, context) =>
      val task = new LaneTask(input, program, childOutput, if (keeps) Some(childOutput) else None, counted, context)
      new LaneGenerateExec.Rows(task, childOutput, columns, rowOutput, keeps, isOuter, counted("numOutputRows"))
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): LaneGenerateExec = copy(child = newChild)
}

private object LaneGenerateExec {

  /** The rows of the tables of each row. */
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

    /** The next row of the answer at hand, and how many it has. */
    private var row = 0
    private var rows = 0

    /** With `outer`: the rows of the batch that nothing came of are those from here to there. */
    private var without = 0
    private var withoutEnd = 0

    override def hasNext: Boolean = {
      while (without >= withoutEnd && row >= rows) {
        // Of this row there was something.
        if (outer && rows > 0) without = task.row + 1
        if (outer && task.batchIsDone) without = 0
        row = 0
        rows = 0
        if (!task.advance()) return false
        rows = task.rows
        count += rows
        if (outer) {
          withoutEnd = if (rows > 0) task.row else task.batchRows
          count += math.max(0, withoutEnd - without)
        }
      }
      true
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException("no more rows")
      if (without < withoutEnd) {
        task.point(kept, without)
        without += 1
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

/** What a stream function makes of the child's rows, which are its input's columns. */
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

private object LaneStreamExec {
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
