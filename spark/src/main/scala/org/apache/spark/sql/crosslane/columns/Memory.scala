package org.apache.spark.sql.crosslane
package columns

import org.apache.spark.memory.{MemoryConsumer, SparkOutOfMemoryError, TaskMemoryManager}
import org.apache.spark.unsafe.Platform

/**
 * The memory of a task's batches. It lies outside the heap, where the native half reads it. It
 * counts as execution memory of the task, so that Spark's other operators make room for it.
 */
private[crosslane] final class Memory(manager: TaskMemoryManager)
    extends MemoryConsumer(manager, manager.pageSizeBytes, manager.getTungstenMemoryMode) {

  /** Nothing can be written to a disk, because all batches are in use. */
  override def spill(size: Long, trigger: MemoryConsumer): Long = 0

  /**
   * Adds to the bytes that count for the task.
   *
   * @throws SparkOutOfMemoryError if the task may not have more
   */
  def acquire(bytes: Long): Unit = {
    val got = acquireMemory(bytes)
    if (got < bytes) {
      freeMemory(got)
      val causes = new java.util.HashMap[String, String]
      causes.put("requestedBytes", bytes.toString)
      causes.put("receivedBytes", got.toString)
      throw new SparkOutOfMemoryError("UNABLE_TO_ACQUIRE_MEMORY", causes)
    }
  }

  def release(bytes: Long): Unit = freeMemory(bytes)
}

/** A buffer of bytes that grows. Its address is a multiple of eight, and changes when it grows. */
private[crosslane] final class Buffer(memory: Memory) {
  private var start = 0L
  private var capacity = 0L

  def address: Long = start

  /** Makes room for `bytes` bytes in all. The content stays. */
  def ensure(bytes: Long): Unit = if (bytes > capacity) grow(bytes)

  private def grow(bytes: Long): Unit = {
    val larger = math.max(math.max(bytes, capacity * 2), Buffer.First)
    memory.acquire(larger - capacity)
    start = Platform.reallocateMemory(start, capacity, larger)
    capacity = larger
  }

  /** Frees the buffer if it has more than `bytes` bytes. The content is lost. */
  def shrink(bytes: Long): Unit = if (capacity > bytes) free()

  def free(): Unit = {
    if (start != 0) Platform.freeMemory(start)
    memory.release(capacity)
    start = 0
    capacity = 0
  }
}

private[crosslane] object Buffer {
  private val First = 1024L
}
