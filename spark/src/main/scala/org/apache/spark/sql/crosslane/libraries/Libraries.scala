package org.apache.spark.sql.crosslane
package libraries

import dev.crosslane.spark.Native
import org.apache.spark.internal.Logging
import org.apache.spark.SparkEnv
import scala.jdk.CollectionConverters._

/**
 * The libraries of this process: of the driver, which asks what their functions are, and of each executor, which calls them.
 *
 * A library is loaded when it is needed first, once for all tasks. Each has a process beside its workers, so there are not more than
 * [[Libraries.Most]] for long: those that were not used for the longest time end, with the last task that uses them.
 */
private[crosslane] object Libraries extends Logging {
  private val Most = 32

  /** A library with the settings of the application, which are others in the next one of the same process. */
  private final case class Key(source: Source, settings: Seq[String])

  private final class Entry(key: Key) {
    private var loaded: Loaded = _
    private var ended = false

    /** The library, unless this has ended. Whoever comes second waits for the first: one load for all. */
    def acquire(): Option[Loaded] = synchronized {
      if (!ended && loaded == null) loaded = load(key)
      Option(loaded).filter(_.use())
    }

    def end(): Unit = synchronized {
      ended = true
      if (loaded != null) loaded.end()
    }
  }

  /** In the order of their last use. */
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

  /** A library, which the caller gives back. */
  def acquire(source: Source): Loaded = {
    NativeLibrary.require()
    val python = source match {
      case pickle: PickleSource => pickle.python
      case _: FileSource => None
    }
    val key = Key(source, Settings.all(SparkEnv.get.conf) ++ python.toSeq.flatMap(Seq("python", _)))
    val (entry, old) = known.synchronized {
      val entry = known.computeIfAbsent(key, new Entry(_))
      val eldest = known.keySet.asScala.take(known.size - Most).toSeq
      (entry, eldest.map(known.remove(_)))
    }
    old.foreach(_.end())
    // Others may have needed so many that this one has ended.
    entry.acquire().getOrElse(acquire(source))
  }

  /** Ends all libraries, because the application has ended. */
  def end(): Unit = {
    val all = known.synchronized {
      val all = known.values.asScala.toSeq
      known.clear()
      all
    }
    // Each waits for its processes.
    val ending = all.map(entry => new Thread(() => entry.end(), "crosslane-end"))
    ending.foreach(_.start())
    ending.foreach(_.join())
  }

  private def load(key: Key): Loaded = {
    val begun = System.nanoTime
    val source = key.source
    val (name, pickles) = source match {
      case file: FileSource => (file.here, Seq.empty)
      case pickle: PickleSource => (pickle.name, pickle.pickles)
    }
    val loaded = new Loaded(source, Native.load(name, pickles.toArray, key.settings.toArray))
    logInfo(s"Crosslane has loaded ${source.name} in ${(System.nanoTime - begun) / 1000000} ms")
    loaded
  }
}
