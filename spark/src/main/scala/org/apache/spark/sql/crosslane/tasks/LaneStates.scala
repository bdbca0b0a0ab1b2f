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
 * A state, which lives in a guest. Spark keeps it as an aggregate's buffer.
 *
 * @param saved what it begins with, or null. Most states that come out of a shuffle are added to others at once, as these bytes
 */
private[crosslane] final class LaneState(val owner: LaneStates, saved: Array[Byte]) {
  private var known = -1

  /** Its slot, if it has one already, or else its bytes. */
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
 * Spark adds, merges and reads states one by one, and an exchange with a guest costs as much for a thousand. So rows and saved states wait
 * until there are many, or something is read; and who reads a state gets, beside it, up to [[LaneStates.Ahead]] others that were changed
 * since they were read last, for those are likely to be read next. Spark does not say when it has forgotten a state: the collector
 * does.
 */
private[crosslane] final class LaneStates(function: LaneFunction, context: TaskContext) {
  private val memory = new Memory(context.taskMemoryManager())
  private val conf = SparkEnv.get.conf
  private val mostRows = Settings.batchRows(conf)
  private val mostBytes = Settings.batchBytes(conf).toLong
  private val loaded = Libraries.acquire(function.source)
  private val states =
    try Native.states(loaded.address, function.description.index)
    catch { case error: Throwable => loaded.giveBack(); throw error }
  private val watched = KillWatch.watch(context)(() => Native.cancelStates(states))

  private val rows = new Waiting(function.description.parameters.map(_.dataType))
  private val saved = new Waiting(Seq(BinaryType))
  private val slots = new Buffer(memory)
  private val told = new Buffer(memory)
  private val results = new Read(function.description.returns.get, saved = false)
  private val bytes = new Read(BinaryType, saved = true)

  private val forgotten = new ReferenceQueue[LaneState]
  private val references = mutable.Set.empty[Reference]

  context.addTaskCompletionListener[Unit](_ => close())

  /** Knows the slot of a state that was forgotten. */
  private final class Reference(state: LaneState, val slot: Int) extends PhantomReference[LaneState](state, forgotten)

  /** Rows for states: a slot for each. */
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
      if (batch.rows >= mostRows || batch.bytes >= mostBytes) flush()
    }

    def flush(): Unit = if (batch.rows > 0) {
      guarded(Native.addToStates(states, targets.address, batch.rows, batch.tell(), batch.columns, this eq saved))
      batch.clear(2 * mostBytes)
    }

    def free(): Unit = {
      batch.free()
      targets.free()
    }
  }

  /** What was read of states. */
  private final class Read(dataType: DataType, saved: Boolean) {
    private val vector = new LaneVector(dataType)
    private val row = new ColumnarBatchRow(Array(vector))
    private val values = mutable.LongMap.empty[Any]

    /** States that were changed since they were read last. */
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
      slots.ensure(all.length * 4L)
      all.zipWithIndex.foreach { case (one, index) => Platform.putInt(null, slots.address + index * 4L, one) }
      val words = vector.columns * Native.COLUMN_WORDS
      told.ensure(words * 8L)
      guarded(Native.readStates(states, slots.address, all.length, saved, told.address, words))
      vector.told(told.address)
      all.zipWithIndex.foreach { case (one, index) =>
        row.rowId = index
        // The native half's memory is good until the next read.
        values(one) = if (row.isNullAt(0)) null else InternalRow.copyValue(row.get(0, dataType))
      }
      values.remove(slot).orNull
    }
  }

  /** A slot for a state. */
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

  /** Adds a saved state; null is one that nothing was added to. */
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
      slots.ensure(8)
      Platform.putInt(null, slots.address, to)
      Platform.putInt(null, slots.address + 4, from)
      guarded(Native.combineStates(states, slots.address, slots.address + 4, 1))
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

  /** Ends the states that Spark has forgotten. No row waits for them: it would be flushed by now. */
  private def destroy(): Unit = {
    var reference = forgotten.poll()
    val ended = mutable.ArrayBuffer.empty[Int]
    while (reference != null) {
      val known = reference.asInstanceOf[Reference]
      references -= known
      results.forget(known.slot)
      bytes.forget(known.slot)
      ended += known.slot
      reference = forgotten.poll()
    }
    if (ended.nonEmpty) {
      slots.ensure(ended.length * 4L)
      ended.zipWithIndex.foreach { case (slot, index) => Platform.putInt(null, slots.address + index * 4L, slot) }
      Native.destroyStates(states, slots.address, ended.length)
    }
  }

  private def guarded[T](body: => T): T = LaneTask.guarded(context)(body)

  private def close(): Unit = {
    watched.end()
    Native.endStates(states)
    loaded.giveBack()
    Seq(rows, saved).foreach(_.free())
    Seq(slots, told).foreach(_.free())
  }
}

private[crosslane] object LaneStates {

  /** So many states are read at once, at most. */
  private val Ahead = 1024

  private val all = new ConcurrentHashMap[(Long, LaneFunction), LaneStates]

  /** Those of a function in this task: Spark copies aggregates, and states of one copy come to another. */
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
      // A task has one thread that uses it.
      val made = new LaneStates(function, context)
      all.put(key, made)
      context.addTaskCompletionListener[Unit](_ => all.remove(key))
      made
    }
  }
}
