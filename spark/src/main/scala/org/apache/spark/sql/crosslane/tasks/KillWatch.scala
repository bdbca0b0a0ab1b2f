package org.apache.spark.sql.crosslane
package tasks

import java.util.concurrent.ConcurrentHashMap
import org.apache.spark.TaskContext

/**
 * Tells tasks that wait in the native half that they were killed. Spark interrupts their threads, which native code does not notice, so one thread
 * of the JVM looks after all of them.
 */
private[crosslane] object KillWatch {
  private val Glance = 50L
  private val watched = new ConcurrentHashMap[Watched, TaskContext]

  /** What a task waits for. */
  final class Watched(cancel: () => Unit) {
    private var over = false

    private[KillWatch] def kill(): Unit = synchronized(if (!over) cancel())

    /** It waits no more: when this returns, nobody cancels it. */
    def end(): Unit = {
      synchronized { over = true }
      watched.remove(this)
    }
  }

  /** Calls `cancel` when the task is killed, on another thread, unless it has ended before. */
  def watch(context: TaskContext)(cancel: () => Unit): Watched = {
    val one = new Watched(cancel)
    watched.put(one, context)
    thread
    one
  }

  private lazy val thread: Thread = {
    val started = new Thread(() => look(), "crosslane-kill-watch")
    started.setDaemon(true)
    started.start()
    started
  }

  private def look(): Unit = while (true) {
    watched.forEach((one, context) => if (context.isInterrupted()) one.kill())
    Thread.sleep(Glance)
  }
}
