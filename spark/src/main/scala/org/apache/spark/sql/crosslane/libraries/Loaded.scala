package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.Native
import java.util.concurrent.atomic.AtomicLong

/**
 * A library that this process has loaded. Each user of it gives it back.
 *
 * @param held what stays referenced as long as the library is loaded
 * @param whenUnused is called when its last user has given it back, with the number of uses so far
 */
private[crosslane] final class Loaded(val source: Source, val address: Long, val held: Seq[AnyRef], whenUnused: Long => Unit) {
  private var users = 0
  private var uses = 0L
  private var ended = false
  private val reported = new AtomicLong

  val functions: Seq[Description] = Description.parse(Native.describe(address))

  /** Whether it can still be used. If so, it stays loaded until it is given back. */
  def use(): Boolean = synchronized {
    if (!ended) {
      users += 1
      uses += 1
    }
    !ended
  }

  def giveBack(): Unit = synchronized {
    users -= 1
    if (users == 0) {
      if (ended) Native.unload(address) else whenUnused(uses)
    }
  }

  /** Whether no task uses it, and no task has used it since this number of uses. */
  def isUnusedSince(uses: Long): Boolean = synchronized(users == 0 && this.uses == uses)

  /**
   * The number of workers that were started since the last call. Only users of the library may call
   * this.
   */
  def newWorkers(): Long = {
    val started = Native.started(address)
    math.max(0, started - reported.getAndAccumulate(started, math.max(_, _)))
  }

  /** Unloads it when its last user has given it back. */
  def end(): Unit = synchronized {
    if (!ended) {
      ended = true
      if (users == 0) Native.unload(address)
    }
  }
}
