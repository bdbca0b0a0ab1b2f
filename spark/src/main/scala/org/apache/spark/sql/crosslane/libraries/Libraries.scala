package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.Native
import java.util.concurrent.TimeUnit
import org.apache.spark.internal.Logging
import org.apache.spark.util.ThreadUtils
import org.apache.spark.SparkEnv
import scala.jdk.CollectionConverters._

/**
 * The libraries of this process. The driver reads descriptions of their functions, and executors
 * call the functions.
 *
 * A library is loaded at its first use, once for all tasks. Each library has a process beside its
 * workers. So at most [[Libraries.Max]] stay loaded: the least recently used ones end, each after
 * the last task that uses it. A library of a query also ends when no task has used it for as long
 * as an idle worker lives.
 */
private[crosslane] object Libraries extends Logging {
  private val Max = 32

  /**
   * A library with the settings of an application. The next application of this process may have
   * other settings.
   */
  private final case class Key(source: Source, settings: Seq[String])

  private final class Entry(key: Key) {
    private var loaded: Loaded = _
    private var ended = false

    /**
     * The library, or None if this entry has ended. While one thread loads the library, others wait
     * for it.
     *
     * @param held what the library refers to as long as it is loaded
     */
    def acquire(held: Seq[AnyRef]): Option[Loaded] = synchronized {
      if (!ended && loaded == null) loaded = load(key, held, uses => endLater(key, this, uses))
      Option(loaded).filter(_.use())
    }

    def isUnusedSince(uses: Long): Boolean = synchronized(loaded.isUnusedSince(uses))

    def end(): Unit = synchronized {
      ended = true
      if (loaded != null) loaded.end()
    }
  }

  /** The entries, in the order of their last use. */
  private val known = new java.util.LinkedHashMap[Key, Entry](16, 0.75f, true)

  /**
   * Runs a body with a library.
   *
   * @throws CrosslaneException if it cannot be loaded
   */
  def use[T](source: Source)(body: Loaded => T): T = {
    val loaded = acquire(source)
    try body(loaded)
    finally loaded.giveBack()
  }

  /** A library. The caller gives it back. */
  def acquire(source: Source): Loaded = {
    NativeLibrary.require()
    val held = source match {
      case functions: QueryFunctions => functions.values
      case _ => Seq.empty
    }
    val python = source match {
      case pickled: Pickled => pickled.python
      case _: FileSource => None
    }
    val key = Key(source, Settings.all(SparkEnv.get.conf) ++ python.toSeq.flatMap(Seq("python", _)))
    val (entry, old) = known.synchronized {
      val entry = known.computeIfAbsent(key, new Entry(_))
      val eldest = known.keySet.asScala.take(known.size - Max).toSeq
      (entry, eldest.map(known.remove(_)))
    }
    old.foreach(_.end())
    // Other threads may have loaded so many libraries that this entry has ended.
    entry.acquire(held).getOrElse(acquire(source))
  }

  private lazy val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("crosslane-idle")

  /** Ends a library of a query if no task uses it before the time of idle workers is over. */
  private def endLater(key: Key, entry: Entry, uses: Long): Unit = key.source match {
    case _: QueryFunctions =>
      val end: Runnable = () => {
        // A task that has found the entry meanwhile keeps the library until it gives it back.
        if (entry.isUnusedSince(uses) && known.synchronized(known.remove(key, entry))) entry.end()
      }
      timer.schedule(end, Settings.idleMilliseconds(key.settings), TimeUnit.MILLISECONDS)
    case _ =>
  }

  /** Ends all libraries at the end of the application. */
  def end(): Unit = {
    val all = known.synchronized {
      val all = known.values.asScala.toSeq
      known.clear()
      all
    }
    // Each thread waits for the processes of its library.
    val ending = all.map(entry => new Thread(() => entry.end(), "crosslane-end"))
    ending.foreach(_.start())
    ending.foreach(_.join())
  }

  private def load(key: Key, held: Seq[AnyRef], whenUnused: Long => Unit): Loaded = {
    val begun = System.nanoTime
    val source = key.source
    val (name, pickles, modules) = source match {
      case file: FileSource => (file.here, Seq.empty, Seq.empty)
      case pickled: Pickled => (pickled.name, pickled.pickles, pickled.modules)
    }
    val address = Native.load(name, pickles.toArray, modules.toArray, key.settings.toArray)
    val loaded = new Loaded(source, address, held, whenUnused)
    logInfo(s"Crosslane has loaded ${source.name} in ${(System.nanoTime - begun) / 1000000} ms")
    loaded
  }
}
