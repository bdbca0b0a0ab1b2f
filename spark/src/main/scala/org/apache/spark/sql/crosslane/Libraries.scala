package org.apache.spark.sql.crosslane

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import dev.crosslane.spark.{CrosslaneException, Native}
import java.io.File
import java.nio.file.{Files, Paths}
import java.security.MessageDigest
import java.util.concurrent.atomic.AtomicLong
import org.apache.spark.{SparkConf, SparkContext, SparkEnv, SparkFiles}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.types.DataType
import scala.jdk.CollectionConverters._
import scala.sys.process.{Process, ProcessLogger}

/** Where the functions of a library come from. It travels with the plan, and means the same on every executor. */
private[crosslane] sealed trait Source extends Serializable {

  /** The file's name, or what a program's functions are called. */
  def name: String

  /** Tells the library from any other version of it. */
  def digest: String
}

/** A file, which Spark has sent to the executors. */
private[crosslane] final case class FileSource(path: String, digest: String) extends Source {
  override def name: String = Paths.get(path).getFileName.toString

  /**
   * The file on this machine: where it was loaded from, so that it finds the files beside it, or where Spark has put it.
   *
   * @throws CrosslaneException if there is no such file, or it is another one
   */
  def here: String = {
    val places = Seq(path, SparkFiles.get(name))
    places.find(place => new File(place).isFile && FileSource.digest(place) == digest).getOrElse {
      throw new CrosslaneException(
        s"$name is not on this machine as it was loaded (looked at ${places.mkString(" and ")}); was it changed since, or do two " +
          "files have this name?")
    }
  }
}

private[crosslane] object FileSource {
  def digest(path: String): String = Source.digest(Files.readAllBytes(Paths.get(path)))
}

/** Functions that a Python program has pickled. `python` is the interpreter that they are for, if it is not the usual one. */
private[crosslane] final class PickleSource(val name: String, val pickles: Seq[Array[Byte]], val python: Option[String])
    extends Source {
  override val digest: String = Source.digest(pickles.reduce(_ ++ _) ++ python.getOrElse("").getBytes)

  // The bytes are compared by their digest.
  override def equals(other: Any): Boolean = other match {
    case source: PickleSource => name == source.name && digest == source.digest
    case _ => false
  }
  override def hashCode: Int = digest.hashCode
}

private[crosslane] object PickleSource {
  def apply(name: String, pickles: Seq[Array[Byte]], python: Option[String] = None): PickleSource =
    new PickleSource(name, pickles, python)
}

private[crosslane] object Source {
  def digest(bytes: Array[Byte]): String =
    MessageDigest.getInstance("SHA-256").digest(bytes).map("%02x".format(_)).mkString
}

/** A parameter of a function. */
private[crosslane] final case class Parameter(name: String, dataType: DataType, named: Boolean)

/** What a library says of one of its functions. */
private[crosslane] final case class Description(
    name: String,
    index: Int,
    kind: String,
    calling: String,
    iterates: Boolean,
    language: String,
    deterministic: Boolean,
    signature: String,
    parameters: Seq[Parameter],
    returns: Option[DataType],
    unsupported: Option[String],
    place: String,
    text: String)

/** A library that this process has loaded. Whoever uses it gives it back. */
private[crosslane] final class Loaded(val source: Source, val address: Long) {
  private var users = 0
  private var ended = false
  private val told = new AtomicLong

  val functions: Seq[Description] = Loaded.parse(Native.describe(address))

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

private object Loaded {
  private def parse(json: String): Seq[Description] = {
    val tree = new ObjectMapper().readTree(json)
    val language = tree.get("language").asText
    tree.get("functions").elements.asScala.map(description(_, language)).toSeq
  }

  private def description(node: JsonNode, language: String): Description = {
    val named = node.get("named").elements.asScala.map(_.asBoolean).toSeq
    val parameters =
      Option(node.get("parameters")).toSeq.flatMap(_.elements.asScala).zipWithIndex.map { case (parameter, index) =>
        val dataType = DataType.fromJson(parameter.get("type").toString)
        Parameter(parameter.get("name").asText, dataType, named.lift(index).getOrElse(false))
      }
    Description(
      name = node.get("name").asText,
      index = node.get("index").asInt,
      kind = node.get("kind").asText,
      calling = node.get("calling").asText,
      iterates = node.get("iterates").asBoolean,
      language = language,
      deterministic = node.get("deterministic").asBoolean,
      signature = node.get("signature").asText,
      parameters = parameters,
      returns = Option(node.get("returns")).map(returns => DataType.fromJson(returns.toString)),
      unsupported = Option(node.get("unsupported")).map(_.asText),
      place = s"${node.get("file").asText}:${node.get("line").asInt}",
      text = node.get("description").asText)
  }
}

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

/** What a user can set, as `spark.crosslane.<name>`. */
private[crosslane] object Settings {

  /** Those that the native half has, beside the programs of languages. */
  private val names =
    Seq(
      "python",
      "ruby",
      "javascript",
      "lua",
      "warm_lanes",
      "idle_timeout",
      "spin",
      "ring_size",
      "largest_batch",
      "load_timeout",
      "stuck_timeout",
      "end_stuck")

  /** Spark's own settings for its workers, which say the same. */
  private def ofSpark(conf: SparkConf): Map[String, String] = {
    val (timeout, ends) = ("spark.python.worker.idleTimeoutSeconds", "spark.python.worker.killOnIdleTimeout")
    Map("stuck_timeout" -> conf.getTimeAsSeconds(timeout, "0").toString, "end_stuck" -> conf.getBoolean(ends, false).toString)
  }

  /** Names and values in turns. */
  def all(conf: SparkConf): Seq[String] = {
    val chosen = names.flatMap(name => conf.getOption(s"spark.crosslane.$name").map(name -> _)).toMap
    val defaults = Map("warm_lanes" -> conf.getInt("spark.executor.cores", 1).toString, "python" -> python(conf))
    (defaults ++ ofSpark(conf) ++ chosen).toSeq.flatMap { case (name, value) => Seq(name, value) }
  }

  /** The interpreter that PySpark's workers have, too; on the driver, whose files may lie elsewhere, that of its program. */
  def python(conf: SparkConf): String = {
    val isDriver = Option(SparkEnv.get).exists(_.executorId == SparkContext.DRIVER_IDENTIFIER)
    def ofDriver = conf
      .getOption("spark.pyspark.driver.python")
      .orElse(sys.env.get("PYSPARK_DRIVER_PYTHON"))
      .filter(path => isDriver && new File(path).getName.startsWith("python"))
    conf
      .getOption("spark.crosslane.python")
      .orElse(ofDriver)
      .orElse(conf.getOption("spark.pyspark.python"))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .getOrElse("python3")
  }

  def batchRows(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.batchRows", 8192)
  def batchBytes(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.batchBytes", 4 << 20)
  def depth(conf: SparkConf): Int = atLeastOne(conf, "spark.crosslane.depth", 2)

  private def atLeastOne(conf: SparkConf, name: String, default: Int): Int = {
    val value = conf.getInt(name, default)
    if (value < 1) throw new CrosslaneException(s"$name is at least 1, not $value")
    value
  }
}

/** The native half, which lies in the Python package `crosslane` of this machine, beside the guests. */
private object NativeLibrary {
  private val Name = "libcrosslane_jni.so"

  /** The version of this jar. */
  private val Version = "0.1.0"

  private lazy val loaded: Unit = {
    val folder = SparkEnv.get.conf.getOption("spark.crosslane.home").getOrElse(installed())
    val file = new File(folder, Name)
    if (!file.isFile) {
      throw new CrosslaneException(s"there is no $Name in $folder: the package crosslane there was built without Spark's part")
    }
    System.load(file.getPath)
    if (Native.version() != Version) {
      throw new CrosslaneException(
        s"the jar is of crosslane $Version, and the package in $folder of ${Native.version()}: install the same version on all machines")
    }
  }

  /** Makes sure that it is loaded. A failure is tried again by the next call. */
  def require(): Unit = loaded

  private def installed(): String = {
    val python = Settings.python(SparkEnv.get.conf)
    val (out, errors) = (new StringBuilder, new StringBuilder)
    val script = "import crosslane; print(crosslane.__path__[0])"
    val log = ProcessLogger(line => out ++= line, line => errors ++= line + "\n")
    val ended =
      try Process(Seq(python, "-P", "-c", script)).!(log)
      catch { case error: java.io.IOException => errors ++= error.getMessage; -1 }
    if (ended != 0) {
      throw new CrosslaneException(
        s"the package crosslane is not installed for $python on ${java.net.InetAddress.getLocalHost.getHostName}: install it there, or " +
          s"name another interpreter with spark.crosslane.python=/path/to/python\n${errors.toString.trim}")
    }
    out.toString
  }
}
