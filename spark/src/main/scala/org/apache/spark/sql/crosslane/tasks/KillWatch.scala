package org.apache.spark.sql.crosslane
package tasks

import java.util.concurrent.ConcurrentHashMap
import org.apache.spark.TaskContext

/**
 * Cancels the waits of tasks that were killed while they wait in the native half. Spark interrupts
 * their threads, but native code does not notice that. So one thread of the JVM watches all of
 * them.
 */
private[crosslane] object KillWatch {

  /** Milliseconds between two checks. */
  private val Interval = 50L
  private val watched = new ConcurrentHashMap[Watched, TaskContext]

  /** A wait of a task. */
  final class Watched(cancel: () => Unit) {
    private var over = false

    private[KillWatch] def kill(): Unit = synchronized(if (!over) cancel())

    /** Ends the watch. When this has returned, no thread calls `cancel`. */
    def end(): Unit = {
      synchronized { over = true }
      watched.remove(this)
    }
  }

  /**
   * Calls `cancel` on another thread when the task is killed, unless the watch has ended before.
   */
  def watch(context: TaskContext)(cancel: () => Unit): Watched = {
    val one = new Watched(cancel)
    watched.put(one, context)
    thread
    one
  }

  private lazy val thread: Thread = {
    val started = new Thread(() => check(), "crosslane-kill-watch")
    started.setDaemon(true)
    started.start()
    started
  }

  private def check(): Unit = while (true) {
    watched.forEach((one, context) => if (context.isInterrupted()) one.kill())
    Thread.sleep(Interval)
  }
}
