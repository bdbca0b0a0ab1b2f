package org.apache.spark.sql.crosslane
package tasks

import dev.crosslane.spark.{CrosslaneException, Native}
import java.lang.ref.{PhantomReference, ReferenceQueue}
import java.util.concurrent.ConcurrentHashMap
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.crosslane.columns.{Buffer, LaneVector, Memory, RowBatch}
import org.apache.spark.sql.crosslane.libraries.{LaneFunction, Libraries, Settings}
import org.apache.spark.sql.types.{BinaryType, DataType}
import org.apache.spark.sql.vectorized.ColumnarBatchRow
import org.apache.spark.unsafe.Platform
import org.apache.spark.{SparkEnv, TaskContext}
import scala.collection.mutable

/**
 * A state, which lives in a guest. For Spark it is an aggregate's buffer.
 *
 * @param saved the bytes that it begins with, or null. Most states from a shuffle are added to other states at once, as bytes
 */
private[crosslane] final class LaneState(val owner: LaneStates, saved: Array[Byte]) {
  private var known = -1

  /** The bytes of a state that has no slot yet. */
  def bytes: Option[Array[Byte]] = if (known < 0) Some(saved) else None

  def slot: Int = {
    if (known < 0) {
      known = owner.create(this)
      owner.load(this, saved)
    }
    known
  }
}

/**
 * The states of an aggregate in one task.
 *
 * Spark updates, merges and reads states one by one. An exchange with a guest costs about the same
 * for one state as for a thousand. So rows and saved states wait until there are many of them, or
 * until Spark reads a state. A read also fetches up to [[LaneStates.Ahead]] other states that were
 * changed since their last read, because Spark is likely to read them next. Spark does not say when
 * it drops a state. The garbage collector tells, by a phantom reference.
 */
private[crosslane] final class LaneStates(function: LaneFunction, context: TaskContext) {
  private val memory = new Memory(context.taskMemoryManager())
  private val conf = SparkEnv.get.conf
  private val maxRows = Settings.batchRows(conf)
  private val maxBytes = Settings.batchBytes(conf).toLong
  private val loaded = Libraries.acquire(function.source)
  private val states =
    try Native.states(loaded.address, function.description.index)
    catch { case error: Throwable => loaded.giveBack(); throw error }
  private val watched = KillWatch.watch(context)(() => Native.cancelStates(states))

  private val rows = new Waiting(function.description.parameters.map(_.dataType))
  private val saved = new Waiting(Seq(BinaryType))
  private val slots = new Buffer(memory)
  private val table = new Buffer(memory)
  private val results = new Read(function.description.returns.get, saved = false)
  private val bytes = new Read(BinaryType, saved = true)

  private val dropped = new ReferenceQueue[LaneState]
  private val references = mutable.Set.empty[Reference]

  context.addTaskCompletionListener[Unit](_ => close())

  /** Has the slot of a state that Spark has dropped. */
  private final class Reference(state: LaneState, val slot: Int) extends PhantomReference[LaneState](state, dropped)

  /** Rows that wait to be added to states. Each has a slot. */
  private final class Waiting(types: Seq[DataType]) {
    val batch = new RowBatch(types, memory)
    private val targets = new Buffer(memory)
    private val ordinals = types.indices.toArray

    def add(slot: Int, row: InternalRow): Unit = {
      targets.ensure((batch.rows + 1) * 4L)
      Platform.putInt(null, targets.address + batch.rows * 4L, slot)
      batch.add(row, ordinals, null)
      results.changed(slot)
      bytes.changed(slot)
      if (batch.rows >= maxRows || batch.bytes >= maxBytes) flush()
    }

    def flush(): Unit = if (batch.rows > 0) {
      guarded(Native.addToStates(states, targets.address, batch.rows, batch.writeTable(), batch.columns, this eq saved))
      batch.clear(2 * maxBytes)
    }

    def free(): Unit = {
      batch.free()
      targets.free()
    }
  }

  /** Values that were read from states. */
  private final class Read(dataType: DataType, saved: Boolean) {
    private val vector = new LaneVector(dataType)
    private val row = new ColumnarBatchRow(Array(vector))
    private val values = mutable.LongMap.empty[Any]

    /** The slots of states that were changed since their last read. */
    private val fresh = mutable.LinkedHashSet.empty[Int]

    def changed(slot: Int): Unit = {
      fresh += slot
      if (values.nonEmpty) values -= slot
    }

    def forget(slot: Int): Unit = {
      fresh -= slot
      values -= slot
    }

    def apply(slot: Int): Any = values.remove(slot).getOrElse(read(slot))

    private def read(slot: Int): Any = {
      flush()
      fresh -= slot
      val all = slot +: fresh.iterator.take(LaneStates.Ahead - 1).toSeq
      fresh --= all
      write(all)
      val words = vector.columns * Native.COLUMN_WORDS
      table.ensure(words * 8L)
      guarded(Native.readStates(states, slots.address, all.length, saved, table.address, words))
      vector.readTable(table.address)
      all.zipWithIndex.foreach { case (one, index) =>
        row.rowId = index
        // The memory of the native half is valid until the next read.
        values(one) = if (row.isNullAt(0)) null else InternalRow.copyValue(row.get(0, dataType))
      }
      values.remove(slot).orNull
    }
  }

  /** Creates a slot for a state. */
  def create(state: LaneState): Int = {
    val slot = Native.createState(states)
    references += new Reference(state, slot)
    slot
  }

  def update(state: LaneState, arguments: InternalRow): Unit = {
    val slot = state.slot
    saved.flush()
    rows.add(slot, arguments)
  }

  /** Adds a saved state. Null stands for an empty one. */
  def load(state: LaneState, bytes: Array[Byte]): Unit = if (bytes != null) {
    val slot = state.slot
    rows.flush()
    saved.add(slot, InternalRow(bytes))
  }

  def combine(target: LaneState, source: LaneState): Unit = source.bytes match {
    case Some(bytes) => load(target, bytes)
    case None =>
      val (to, from) = (target.slot, source.slot)
      flush()
      guarded(Native.combineStates(states, to, from))
      Seq(results, bytes).foreach { read =>
        read.changed(to)
        read.changed(from)
      }
  }

  def result(state: LaneState): Any = results(state.slot)

  def save(state: LaneState): Array[Byte] = bytes(state.slot).asInstanceOf[Array[Byte]]

  private def flush(): Unit = {
    saved.flush()
    rows.flush()
    destroy()
  }

  /**
   * Ends the states that Spark has dropped. No row waits for them, because the callers have flushed
   * all rows.
   */
  private def destroy(): Unit = {
    var reference = dropped.poll()
    val ended = mutable.ArrayBuffer.empty[Int]
    while (reference != null) {
      val known = reference.asInstanceOf[Reference]
      references -= known
      results.forget(known.slot)
      bytes.forget(known.slot)
      ended += known.slot
      reference = dropped.poll()
    }
    if (ended.nonEmpty) {
      write(ended)
      Native.destroyStates(states, slots.address, ended.length)
    }
  }

  /** Writes numbers of slots where the native half reads them. */
  private def write(numbers: Iterable[Int]): Unit = {
    slots.ensure(numbers.size * 4L)
    numbers.zipWithIndex.foreach { case (slot, index) => Platform.putInt(null, slots.address + index * 4L, slot) }
  }

  private def guarded[T](body: => T): T = LaneTask.guarded(context)(body)

  private def close(): Unit = {
    watched.end()
    Native.endStates(states)
    loaded.giveBack()
    Seq(rows, saved).foreach(_.free())
    Seq(slots, table).foreach(_.free())
  }
}

private[crosslane] object LaneStates {

  /** The most states that are read at once. */
  private val Ahead = 1024

  private val all = new ConcurrentHashMap[(Long, LaneFunction), LaneStates]

  /**
   * The states of a function in this task. Copies of an aggregate share them, because Spark passes
   * states between copies.
   */
  def of(function: LaneFunction): LaneStates = {
    val context = TaskContext.get()
    if (context == null) {
      throw new CrosslaneException(s"${function.description.name} is evaluated in a task, and there is none here")
    }
    val key = (context.taskAttemptId(), function)
    val known = all.get(key)
    if (known != null) {
      known
    } else {
      // No lock: only the task's own thread looks up its key.
      val made = new LaneStates(function, context)
      all.put(key, made)
      context.addTaskCompletionListener[Unit](_ => all.remove(key))
      made
    }
  }
}
