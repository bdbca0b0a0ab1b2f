package org.apache.spark.sql.crosslane
package tasks

import dev.crosslane.spark.{CrosslaneException, Native}
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.columns.{Buffer, LaneVector, Memory, RowBatch}
import org.apache.spark.sql.crosslane.libraries.{Libraries, Loaded, Settings}
import org.apache.spark.sql.crosslane.planning.Program
import org.apache.spark.sql.crosslane.pyspark.PySpark
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.unsafe.Platform
import org.apache.spark.{SparkEnv, TaskContext}

/**
 * The work of a task: rows go in, answers come out.
 *
 * The task's thread reads rows and writes them into batches, and hands each to a thread of the native half, which uses the functions. While
 * they work on a batch, the task's thread fills the next. So what is Spark's stays on the task's own thread: the input sees
 * the task's context, a failing input fails the task at once, and no JVM thread is needed beside Spark's. At most `depth` batches are
 * under way, unless a function that sees all of them wants more before it gives results, and no batch has more rows or bytes than the settings say, or one row. The first batches are short, so that a LIMIT has
 * its rows soon.
 *
 * @param kept the columns of the input's rows that are kept until the batch is done with, for [[point]]; `None`: no rows are
 */
private[crosslane] final class LaneTask(
    input: Iterator[InternalRow],
    program: Program,
    childOutput: Seq[Attribute],
    kept: Option[Seq[Attribute]],
    metrics: Map[String, SQLMetric],
    context: TaskContext) {
  private val memory = new Memory(context.taskMemoryManager())
  private val conf = SparkEnv.get.conf
  private val depth = Settings.depth(conf)
  private val mostRows = program.batchRows.getOrElse(Settings.batchRows(conf))
  private val mostBytes = program.batchBytes.getOrElse(Settings.batchBytes(conf).toLong)

  // Columns of the child need no copy to be read.
  private val places = program.inputs.map {
    case attribute: Attribute => childOutput.indexWhere(_.exprId == attribute.exprId)
    case _ => -1
  }
  private val areColumns = places.forall(_ >= 0)
  private val values: InternalRow => InternalRow =
    if (areColumns) {
      identity
    } else {
      val projection = UnsafeProjection.create(program.inputs, childOutput)
      // Some expressions, such as rand(), depend on it.
      projection.initialize(context.partitionId())
      projection
    }
  private val ordinals = (if (areColumns) places else program.inputs.indices).toArray
  private val toKept: InternalRow => UnsafeRow = kept match {
    case None => _ => null
    case Some(columns) =>
      lazy val projection = UnsafeProjection.create(columns, childOutput)
      val isWhole = columns == childOutput
      row =>
        row match {
          case already: UnsafeRow if isWhole => already
          case other => projection(other)
        }
  }

  private val types = program.inputs.map(_.dataType)

  /** The batches that are under way, the oldest first, and those that can be filled. */
  private val underWay, free = new java.util.ArrayDeque[RowBatch]

  /** Whether the function wants another batch, however many are under way. */
  private var wants = false
  private var longest = if (program.isPySpark) mostRows else math.min(LaneTask.FirstRows, mostRows)

  /** Whether the oldest batch is done with, but for the answer at hand. */
  private var isLast = false
  private var finished = false
  private var closed = false

  /** The results of each step. */
  val vectors: Array[LaneVector] = program.steps.map(step => new LaneVector(step.function.description.returns.get)).toArray
  private val words = Native.HEAD_WORDS + vectors.map(_.columns).sum * Native.COLUMN_WORDS
  private val told = new Buffer(memory)

  private val libraries = new scala.collection.mutable.ArrayBuffer[Loaded]
  private var task = 0L

  /** How many rows the answer at hand has, and the row of the batch that they are of, or -1 if each row has its own. */
  var rows = 0
  var row = -1

  context.addTaskCompletionListener[Unit](_ => close())
  begin()

  private def begin(): Unit = guarded {
    told.ensure(words * 8L)
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
    task = Native.begin(program.inputs.length, program.json(addresses.toMap), 1, depth)
  }

  /** Whether there is a next answer; if so, it is at hand. */
  def advance(): Boolean = {
    while (!closed) {
      if (isLast) {
        val done = underWay.poll()
        done.clear(2 * mostBytes)
        free.push(done)
        isLast = false
      }
      fill()
      if (take()) return true
    }
    false
  }

  /** How many rows of the oldest batch there are. */
  def batchRows: Int = underWay.peek().rows

  /** Whether nothing more comes of the oldest batch. */
  def batchIsDone: Boolean = isLast

  /** Has `row` read one of the oldest batch. */
  def point(row: UnsafeRow, at: Int): Unit = underWay.peek().point(row, at)

  /** Fills batches as long as there is room. */
  private def fill(): Unit = {
    while (!finished && (wants || underWay.size < depth)) {
      wants = false
      if (input.hasNext) {
        // It is freed with the others, whatever happens.
        underWay.add(if (free.isEmpty) new RowBatch(types, memory) else free.pop())
        val batch = underWay.peekLast()
        while (batch.rows < longest && batch.bytes < mostBytes && (batch.rows == 0 || input.hasNext)) {
          val next = input.next()
          batch.add(values(next), ordinals, toKept(next))
        }
        longest = math.min(longest * LaneTask.Growth, mostRows)
        guarded(Native.submit(task, batch.rows, batch.tell(), batch.columns))
        metrics("batches") += 1
        metrics("sentBytes") += batch.bytes
      } else {
        finished = true
        guarded(Native.finish(task))
      }
    }
  }

  /** Waits for the next answer. False if it ends the work, or has no rows. */
  private def take(): Boolean = {
    val begun = System.nanoTime
    var found = Native.NOT_YET
    while (found == Native.NOT_YET) {
      found = guarded(Native.take(task, told.address, words, LaneTask.Glance))
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
    vectors.foldLeft(told.address + Native.HEAD_WORDS * 8L)((at, vector) => vector.told(at))
    rows > 0 || isLast
  }

  private def word(index: Int): Long = Platform.getLong(null, told.address + index * 8L)

  private def guarded[T](body: => T): T =
    try LaneTask.guarded(context)(body)
    catch { case error: CrosslaneException if program.isPySpark => throw PySpark.exception(error) }

  private def close(): Unit = if (!closed) {
    closed = true
    // It returns when nothing reads the batches any more.
    if (task != 0) Native.end(task)
    libraries.foreach { loaded =>
      metrics("workersStarted") += loaded.newWorkers()
      loaded.giveBack()
    }
    Seq(underWay, free).foreach(_.forEach(_.free()))
    told.free()
  }
}

private[crosslane] object LaneTask {

  /** What fails names where it ran. A task that was killed says so, whatever it was at. */
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

  /** Rows of the first batch, and how many times as many each further one may have. */
  private val FirstRows = 64
  private val Growth = 4

  /** So many milliseconds pass between two looks whether the task was killed. */
  private val Glance = 50

  /** The metrics that each answer adds to, in the order in which it tells them. */
  private val Counted = Seq("functionTime", "callTime", "errors", "retries", "workersLost")
}
