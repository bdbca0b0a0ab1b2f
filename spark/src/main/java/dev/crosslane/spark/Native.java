package dev.crosslane.spark;

/**
 * The native half, which is the crate {@code crosslane-jni}. Libraries, tasks and states are
 * numbers here. Each is given back once. One thread at a time calls the methods of a task or of
 * states, except {@link #cancelStates}.
 *
 * <p>All methods throw {@link CrosslaneException}.
 */
public final class Native {
  /**
   * The number of 64-bit words of a column: rows, the addresses of validity, offsets and values,
   * and the bytes of values.
   */
  public static final int COLUMN_WORDS = 5;

  /**
   * The number of words before the results' columns: counts, {@link #ROW_WORD}, {@link #LAST_WORD}
   * and {@link #WANTS_WORD}.
   */
  public static final int HEAD_WORDS = 8;

  /**
   * The index of the word with the batch's row to which the results belong, or -1 if each row has
   * its own.
   */
  public static final int ROW_WORD = 5;

  /** The index of the word that says whether this is the last answer to the batch. */
  public static final int LAST_WORD = 6;

  /**
   * The index of the word that says whether the function wants another batch before it gives more
   * results.
   */
  public static final int WANTS_WORD = 7;

  /** {@link #take} found nothing within its time. */
  public static final int NOT_YET = -1;

  /** {@link #take} found that no more answers come. */
  public static final int DONE = -2;

  private Native() {}

  /** The version of the native half. */
  public static native String version();

  /** Says in which folder the guests are, before the first {@link #load}. */
  public static native void home(String folder);

  /**
   * Loads a file, or functions that a Python program has pickled. If there are names of modules,
   * one process imports them for all libraries. Names and values of settings alternate.
   */
  public static native long load(
      String name, byte[][] pickles, String[] modules, String[] settings);

  /**
   * The function that a statement defines in another language: its name, how it treats another one
   * of its name, and the path of its file, as JSON. Null if the text is another statement.
   */
  public static native String definition(String text);

  /** The language of a library and its functions, as JSON. */
  public static native String describe(long library);

  /** The number of workers of a library that were started so far. */
  public static native long started(long library);

  /** Ends a library. Tasks that use it keep it until they end. */
  public static native void unload(long library);

  /**
   * Begins the work of a task. The program is JSON: the steps for each batch. The query is its number, or
   * -1.
   */
  public static native long begin(int inputs, String program, int depth, long query);

  /**
   * Hands a batch over. It must not change until its last answer was taken or the task has ended.
   */
  public static native void submit(long task, int rows, long table, int columns);

  /** Says that no more batches come. */
  public static native void finish(long task);

  /**
   * Takes the next answer, if it comes within the time. Writes {@link #HEAD_WORDS} words, and the
   * words of each step's results, to the table. Returns the number of rows of the results. They can
   * be read until the next call.
   */
  public static native int take(long task, long table, int words, int milliseconds);

  /** Ends the work of a task at once. */
  public static native void end(long task);

  /** Begins the states of an aggregate. A state is known by its slot. */
  public static native long states(long library, int function);

  /** Creates a slot with an empty state. */
  public static native int createState(long states);

  /** Ends the states of slots. Their numbers are at an address. */
  public static native void destroyStates(long states, long slots, int count);

  /** Adds rows to states. Each row has a slot. The rows are arguments or saved states. */
  public static native void addToStates(
      long states, long slots, int count, long table, int columns, boolean saved);

  /** Adds the state of a slot to that of another. The source is empty afterwards. */
  public static native void combineStates(long states, int target, int source);

  /**
   * Reads results of states, or states as bytes. Writes where they lie to the table. They can be
   * read until the next call.
   */
  public static native void readStates(
      long states, long slots, int count, boolean saved, long table, int words);

  /** Ends the waits of the thread that uses the states. Any thread may call this. */
  public static native void cancelStates(long states);

  /** Ends states. */
  public static native void endStates(long states);
}
