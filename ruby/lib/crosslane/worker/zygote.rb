# frozen_string_literal: true

require "crosslane"
require "rbconfig"

module Crosslane
  # The zygote: what Ruby does of it. All else (the control socket, lanes, their ends) is native (`crosslane-guest`).
  class Zygote
    # Objects, of 40 bytes.
    ROOM = 100_000
    # Threads that a fork can do without: Timeout starts its own again there.
    DISPENSABLE = ["Timeout stdlib thread"].freeze
    private_constant :ROOM, :DISPENSABLE

    # The life of a zygote's process; or, with the words `check FILE`, what that file declares on stdout.
    def self.run
      # Files see the same words in each process that loads them.
      arguments = ARGV.dup
      ARGV.clear
      Native.zygote(new, arguments)
    end

    # @return [Array<Declaration>]
    attr_reader :functions

    def initialize
      # What a lane prints is read by the line.
      $stdout.sync = $stderr.sync = true
      @functions = []
    end

    # What follows is called by the native half.

    def runtime = "Ruby #{RUBY_VERSION}"

    # @return [Array<String>] what starts this program, with the compiler's options that it was started with
    def command
      compiler = File.binread("/proc/self/cmdline").split("\0").grep(/\A--yjit/)
      folder = File.expand_path("../..", __dir__)
      [RbConfig.ruby, *compiler, "-I#{folder}", "-rcrosslane/worker/zygote", "-e", "Crosslane::Zygote.run"]
    end

    # Loads a file.
    #
    # @return [Array(String, String)] what the engine is told of its functions, and what tells its text from any other
    def load(path)
      @functions, text = Library.read(path)
      [JSON.generate(@functions.map(&:message)), text]
    end

    # Opens the streams again that a file has closed. What it has put in their place stays.
    def open_streams
      $stdout = stream(1) if closed?($stdout)
      $stderr = stream(2) if closed?($stderr)
    end

    # The names of the threads that a file has started, and a fork would miss.
    #
    # @return [Array<String>]
    def lost_threads
      threads = Thread.list.reject { |thread| thread == Thread.current || DISPENSABLE.include?(thread.name) }
      threads.map { |thread| thread.name || thread.inspect[/ (\S+:\d+) /, 1] || "one without a name" }
    end

    # @param bell [Integer] the descriptor to which the zygote wants a byte when a lane has ended
    def settle(bell)
      # A heap with room, so that a lane's collections are rare: each looks at all that is alive.
      Array.new(ROOM) { +"" }.clear
      # Lanes share what was loaded; objects that are old already are not touched, and so not copied, by their
      # collectors.
      4.times { GC.start }
      bell = IO.for_fd(bell, "w", autoclose: false)
      @on_child = trap("CHLD") { bell.write_nonblock(".", exception: false) } || "DEFAULT"
    end

    # Ruby flushes its streams at a fork; what a file has put in their place may fail at that.
    #
    # @return [Integer, nil] nil in the child
    def fork
      out = $stdout
      err = $stderr
      $stdout = stream(1)
      $stderr = stream(2)
      # Its children are its own.
      Process.fork.tap { |pid| trap("CHLD", @on_child) if @on_child && !pid }
    ensure
      $stdout = out
      $stderr = err
    end

    # Makes a fork a lane of its own.
    #
    # @return [Boolean] whether it writes its stack when it gets SIGQUIT
    def begin
      [$stdout, $stderr].grep(IO) { |stream| stream.sync = true }
      # The engine asks so what a call does that makes no progress. A handler of the file's own stays.
      before = trap("QUIT") { write_stack }
      is_free = [nil, "DEFAULT", "SYSTEM_DEFAULT", "IGNORE"].include?(before)
      trap("QUIT", before) unless is_free
      is_free
    end

    # Says why a lane ends.
    #
    # @return [Integer] the exit code it ends with
    def explain(error)
      return error.status if error.is_a?(SystemExit)

      stream(2).puts error.full_message(highlight: false)
      1
    end

    def flush
      [$stdout, $stderr].each do |stream|
        stream.flush
      rescue StandardError
        nil
      end
    end

    private

    # The frames of the threads, the innermost first, as Python writes them. What fails here must not fail the function.
    def write_stack
      threads = Thread.list.map do |thread|
        ours = [Errors::OURS, "<internal:"]
        frames = thread.backtrace_locations.to_a.reject { |frame| frame.path.to_s.start_with?(*ours) }
        lines = frames.map { |frame| "  File \"#{frame.path}\", line #{frame.lineno} in #{frame.label}\n" }
        "Stack (most recent call first):\n#{lines.join}"
      end
      stream(2).write(threads.join)
    rescue StandardError
      nil
    end

    def stream(number) = IO.for_fd(number, "w", autoclose: false).tap { |stream| stream.sync = true }

    def closed?(stream) = stream.is_a?(IO) && stream.closed?
  end
end
