package org.apache.spark.sql.crosslane
package tasks

import dev.crosslane.spark.{CrosslaneException, Native}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.crosslane.columns.{Buffer, LaneVector, Memory, RowBatch}
import org.apache.spark.sql.crosslane.libraries.{Libraries, Loaded, Settings}
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.pyspark.PySpark
import org.apache.spark.sql.execution.SQLExecution
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.unsafe.Platform
import org.apache.spark.{SparkEnv, TaskContext}

/**
 * The work of a task: rows go in, answers come out.
 *
 * The task's thread writes rows into batches, and hands each batch to a thread of the native half,
 * which calls the functions. Meanwhile the task's thread fills the next batch. So all of Spark's
 * code runs on the task's own thread: the input sees the task's context, an input that fails ends
 * the task at once, and the plugin needs no other thread of the JVM.
 *
 * At most `depth` batches are in progress, unless a function of all batches wants more before it
 * gives results. The settings limit the rows and bytes of a batch, but a batch has at least one
 * row. The first batches are short, so that a LIMIT has its rows soon.
 */
private[crosslane] final class LaneTask(
    input: BatchInput,
    program: Program,
    metrics: Map[String, SQLMetric],
    context: TaskContext) {
  private val memory = new Memory(context.taskMemoryManager())
  private val conf = SparkEnv.get.conf
  private val depth = Settings.depth(conf)
  private val maxRows = program.batchRows.getOrElse(Settings.batchRows(conf))
  private val maxBytes = program.batchBytes.getOrElse(Settings.batchBytes(conf).toLong)

  private val types = program.inputs.map(_.dataType)

  /** The batches that are in progress, the oldest first, and those that can be filled. */
  private val inProgress, free = new java.util.ArrayDeque[RowBatch]

  /** Whether the function wants another batch, even if `depth` batches are in progress. */
  private var wants = false
  private var nextRows = if (program.isPySpark) maxRows else math.min(LaneTask.FirstRows, maxRows)

  /** Whether the current answer is the last one to the oldest batch. */
  private var isLast = false
  private var finished = false
  private var closed = false

  /** The results of each step. */
  val vectors: Array[LaneVector] = program.steps.map(step => new LaneVector(step.function.description.returns.get)).toArray
  private val words = Native.HEAD_WORDS + vectors.map(_.columns).sum * Native.COLUMN_WORDS
  private val table = new Buffer(memory)

  private val libraries = new scala.collection.mutable.ArrayBuffer[Loaded]
  private var task = 0L

  /**
   * The number of rows of the current answer, and the batch's row to which they belong, or -1 if
   * each row has its own.
   */
  var rows = 0
  var row = -1

  context.addTaskCompletionListener[Unit](_ => close())
  begin()

  private def begin(): Unit = guarded {
    table.ensure(words * 8L)
    val addresses = program.steps.map(_.function.source).distinct.map { source =>
      val loaded = Libraries.acquire(source)
      libraries += loaded
      source -> loaded.address
    }
    program.steps.foreach { step =>
      val (wanted, loaded) = (step.function.description, libraries.find(_.source == step.function.source).get)
      if (!loaded.functions.lift(wanted.index).exists(_.signature == wanted.signature)) {
        throw new CrosslaneException(
          s"${wanted.place} does not declare ${wanted.signature} on this machine, as it does on the driver's")
      }
    }
    val query = Option(context.getLocalProperty(SQLExecution.EXECUTION_ID_KEY)).fold(-1L)(_.toLong)
    task = Native.begin(program.inputs.length, program.json(addresses.toMap), depth, query)
  }

  /** Takes the next answer. Returns whether there is one. */
  def advance(): Boolean = {
    while (!closed) {
      if (isLast) {
        val done = inProgress.poll()
        done.clear(2 * maxBytes)
        free.push(done)
        isLast = false
      }
      fill()
      if (take()) return true
    }
    false
  }

  /** The number of rows of the oldest batch. */
  def batchRows: Int = inProgress.peek().rows

  /** Whether no more answers to the oldest batch come. */
  def batchIsDone: Boolean = isLast

  /** Lets `row` read a row of the oldest batch. */
  def point(row: UnsafeRow, at: Int): Unit = inProgress.peek().point(row, at)

  /** Lets `vector` read a column of the oldest batch. */
  def pointColumn(vector: LaneVector, column: Int): Unit = inProgress.peek().point(vector, column)

  /** Fills batches as long as there is room. */
  private def fill(): Unit = {
    while (!finished && (wants || inProgress.size < depth)) {
      wants = false
      if (input.hasNext) {
        // It is added first, so that `close` frees it after an error.
        inProgress.add(if (free.isEmpty) new RowBatch(types, memory, input.others) else free.pop())
        val batch = inProgress.peekLast()
        input.fill(batch, nextRows, maxBytes)
        nextRows = math.min(nextRows * LaneTask.Growth, maxRows)
        guarded(Native.submit(task, batch.rows, batch.writeTable(), batch.columns))
        metrics("batches") += 1
        metrics("sentBytes") += batch.bytes
      } else {
        finished = true
        guarded(Native.finish(task))
      }
    }
  }

  /**
   * Waits for the next answer. Returns false if the work has ended, or if the answer has nothing
   * for the operator.
   */
  private def take(): Boolean = {
    val begun = System.nanoTime
    var found = Native.NOT_YET
    while (found == Native.NOT_YET) {
      found = guarded(Native.take(task, table.address, words, LaneTask.Interval))
      if (found == Native.NOT_YET) context.killTaskIfInterrupted()
    }
    metrics("waitTime") += System.nanoTime - begun
    if (found == Native.DONE) {
      close()
      return false
    }
    LaneTask.Counted.zipWithIndex.foreach { case (name, word) => metrics(name) += this.word(word) }
    isLast = word(Native.LAST_WORD) != 0
    wants = word(Native.WANTS_WORD) != 0
    row = word(Native.ROW_WORD).toInt
    rows = found
    vectors.foldLeft(table.address + Native.HEAD_WORDS * 8L)((at, vector) => vector.readTable(at))
    rows > 0 || isLast
  }

  private def word(index: Int): Long = Platform.getLong(null, table.address + index * 8L)

  private def guarded[T](body: => T): T =
    try LaneTask.guarded(context)(body)
    catch { case error: CrosslaneException if program.isPySpark => throw PySpark.exception(error) }

  private def close(): Unit = if (!closed) {
    closed = true
    // When it has returned, nothing reads the batches any more.
    if (task != 0) Native.end(task)
    libraries.foreach { loaded =>
      metrics("workersStarted") += loaded.newWorkers()
      loaded.giveBack()
    }
    Seq(inProgress, free).foreach(_.forEach(_.free()))
    table.free()
  }
}

private[crosslane] object LaneTask {

  /**
   * Adds the host and the task to an error. If the task was killed, throws Spark's error for that
   * instead.
   */
  def guarded[T](context: TaskContext)(body: => T): T =
    try body
    catch {
      case error: CrosslaneException =>
        context.killTaskIfInterrupted()
        val host = org.apache.spark.util.Utils.localHostName()
        throw new CrosslaneException(
          s"${error.getMessage}\n  on $host, in stage ${context.stageId()}, partition ${context.partitionId()}, " +
            s"task ${context.taskAttemptId()}")
    }

  /** The rows of the first batch, and the factor by which later batches may grow. */
  private val FirstRows = 64
  private val Growth = 4

  /** Milliseconds between two checks whether the task was killed. */
  private val Interval = 50

  /** The metrics to which each answer adds, in the order of its words. */
  private val Counted = Seq("functionTime", "callTime", "errors", "retries", "workersLost")
}
