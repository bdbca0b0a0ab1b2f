package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.Native
import java.util.concurrent.atomic.AtomicLong

/** A library that this process has loaded. Whoever uses it gives it back. */
private[crosslane] final class Loaded(val source: Source, val address: Long) {
  private var users = 0
  private var ended = false
  private val told = new AtomicLong

  val functions: Seq[Description] = Description.parse(Native.describe(address))

  /** Whether it can still be used; if so, it stays until it is given back. */
  def use(): Boolean = synchronized {
    if (!ended) users += 1
    !ended
  }

  def giveBack(): Unit = synchronized {
    users -= 1
    if (ended && users == 0) Native.unload(address)
  }

  /** How many workers were started that no task has been told of. Whoever uses it may ask. */
  def newWorkers(): Long = {
    val started = Native.started(address)
    math.max(0, started - told.getAndAccumulate(started, math.max(_, _)))
  }

  /** Unloads it as soon as nobody uses it any more. */
  def end(): Unit = synchronized {
    if (!ended) {
      ended = true
      if (users == 0) Native.unload(address)
    }
  }
}
