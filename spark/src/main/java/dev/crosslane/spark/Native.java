package dev.crosslane.spark;

/**
 * The native half, which is the crate {@code crosslane-jni}. Libraries and tasks are numbers here; each is given back once. One
 * thread at a time calls the methods of a task.
 *
 * <p>All methods throw {@link CrosslaneException}.
 */
public final class Native {
  /** How many 64-bit words tell of a column: rows, and the addresses of validity, offsets, values, and the values' bytes. */
  public static final int COLUMN_WORDS = 5;

  /** How many words stand before the results' columns: what was counted, {@link #ROW_WORD}, {@link #LAST_WORD} and {@link #WANTS_WORD}. */
  public static final int HEAD_WORDS = 8;

  /** Which of them has the row of the batch that the results are of, or -1 if each row has its own. */
  public static final int ROW_WORD = 5;

  /** Which of them says whether the batch is done with. */
  public static final int LAST_WORD = 6;

  /** Which of them says whether the function wants another batch before it gives more results. */
  public static final int WANTS_WORD = 7;

  /** {@link #take} found nothing within its time. */
  public static final int NOT_YET = -1;

  /** {@link #take} found that there is no more. */
  public static final int DONE = -2;

  private Native() {}

  /** The version of the native half. */
  public static native String version();

  /** Loads a file, or functions that a Python program has pickled. Settings are names and values in turns. */
  public static native long load(String name, byte[][] pickles, String[] settings);

  /** The language of a library and its functions, as JSON. */
  public static native String describe(long library);

  /** How many workers of a library were started so far. */
  public static native long started(long library);

  /** Ends a library. Tasks that use it keep it until they end. */
  public static native void unload(long library);

  /** Begins the work of a task. The program is JSON: the steps that are made with each batch. */
  public static native long begin(int inputs, String program, int width, int depth);

  /** Hands a batch over, which must stay as it is until its last answer was taken or the task has ended. */
  public static native void submit(long task, int rows, long table, int columns);

  /** Says that no more batches come. */
  public static native void finish(long task);

  /**
   * Takes the next answer, if it comes within so many milliseconds: writes {@link #HEAD_WORDS} words, and the words of each step's results, to
   * the address. Returns how many rows the results have. They can be read until the next call.
   */
  public static native int take(long task, long table, int words, int milliseconds);

  /** Ends the work of a task, whatever it is at. */
  public static native void end(long task);

  /** Begins the states of an aggregate. A state is known by its slot. One thread uses them. */
  public static native long states(long library, int function);

  /** A slot with a new state. */
  public static native int createState(long states);

  /** The states of so many slots, whose numbers lie at an address, are no more. */
  public static native void destroyStates(long states, long slots, int count);

  /** Adds rows to states, a slot for each: arguments, or saved states. */
  public static native void addToStates(
      long states, long slots, int count, long table, int columns, boolean saved);

  /** Adds sources to targets, and leaves nothing in the sources. */
  public static native void combineStates(long states, long targets, long sources, int count);

  /** Writes where the results of states lie, or states as bytes, to the table. They can be read until the next call. */
  public static native void readStates(
      long states, long slots, int count, boolean saved, long table, int words);

  /** Ends what is waited for, from any thread. */
  public static native void cancelStates(long states);

  /** Ends states. */
  public static native void endStates(long states);
}
