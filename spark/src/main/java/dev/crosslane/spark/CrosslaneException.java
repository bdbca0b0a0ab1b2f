package dev.crosslane.spark;

/** An error of a function or of its worker, or the reason why Crosslane cannot be used here. */
public class CrosslaneException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public CrosslaneException(String message) {
    super(message);
  }
}
