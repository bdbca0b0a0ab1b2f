package dev.crosslane.spark;

/** What a function raised, what became of its worker, or why Crosslane cannot be used here. */
public class CrosslaneException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public CrosslaneException(String message) {
    super(message);
  }
}
