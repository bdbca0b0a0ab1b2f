# frozen_string_literal: true

# This comes before all gems.
require "crosslane/worker/bundle"
require "crosslane"
require "rbconfig"

module Crosslane
  # The Ruby part of the zygote. The native part (`crosslane-guest`) handles the control socket, the
  # lanes and their ends.
  class Zygote
    # A number of Ruby objects, of 40 bytes each.
    ROOM = 100_000
    # Threads that a fork does not need: Timeout starts its own thread again in the fork.
    DISPENSABLE = ["Timeout stdlib thread"].freeze
    private_constant :ROOM, :DISPENSABLE

    # Runs a zygote's process. With the arguments `check FILE`, prints the declarations of that file
    # on stdout.
    def self.run
      # ARGV is empty for the files, in each process that loads them.
      arguments = ARGV.dup
      ARGV.clear
      Native.zygote(new, arguments)
    end

    # @return [Array<Declaration>]
    attr_reader :functions

    def initialize
      # The output of a lane is read line by line.
      $stdout.sync = $stderr.sync = true
      @functions = []
    end

    # The native part calls the methods from here on.

    def runtime = "Ruby #{RUBY_VERSION}"

    # @return [Array<String>] the command that starts this program, with the same compiler options
    def command
      compiler = File.binread("/proc/self/cmdline").split("\0").grep(/\A--yjit/)
      folder = File.expand_path("../..", __dir__)
      [RbConfig.ruby, *compiler, "-I#{folder}", "-rcrosslane/worker/zygote", "-e", "Crosslane::Zygote.run"]
    end

    # Loads a file.
    #
    # @return [Array(String, Hash)] the description of the functions for the engine, and a hash of
    #   the content of each file
    def load(path)
      Bundle.check
      @functions, hashes = Library.read(path)
      [JSON.generate(@functions.map(&:message)), hashes]
    end

    # @return [Array(Array<String>, Array<String>)] the files and folders of Ruby and its packages, and
    #   other folders with modules
    def reads
      prefix = RbConfig::CONFIG["prefix"]
      packages = [File.expand_path("../..", __dir__), *Gem.path, File.join(prefix, "lib"), RbConfig.ruby]
      packages += %w[rubylibdir sitelibdir vendorlibdir].filter_map { |name| RbConfig::CONFIG[name] }
      packages << ENV["BUNDLE_GEMFILE"] << "#{ENV["BUNDLE_GEMFILE"]}.lock" if ENV["BUNDLE_GEMFILE"]
      below = packages.map { |package| "#{package}/" }
      [packages, $LOAD_PATH.map(&:to_s).reject { |folder| "#{folder}/".start_with?(*below) }]
    end

    # Tells the recorder of variables that are read from now on.
    def note_variables
      require "crosslane/worker/variables"
      ENV.singleton_class.prepend(NotedVariables)
    end

    # Opens the standard streams again if a file has closed them. A stream that a file has put in
    # place of one is kept.
    def open_streams
      $stdout = stream(1) if closed?($stdout)
      $stderr = stream(2) if closed?($stderr)
    end

    # The names of threads that the file has started. A fork does not have these threads.
    #
    # @return [Array<String>]
    def lost_threads
      threads = Thread.list.reject { |thread| thread == Thread.current || DISPENSABLE.include?(thread.name) }
      threads.map { |thread| thread.name || thread.inspect[/ (\S+:\d+) /, 1] || "one without a name" }
    end

    # @param bell [Integer] the descriptor that gets a byte when a lane has ended
    def settle(bell)
      # A heap with free slots makes collections in lanes rare. Each collection visits all live
      # objects.
      Array.new(ROOM) { +"" }.clear
      # Lanes share the memory of loaded objects. Their collectors do not write to old objects, so
      # the kernel does not copy these pages.
      4.times { GC.start }
      bell = IO.for_fd(bell, "w", autoclose: false)
      @on_child = trap("CHLD") { bell.write_nonblock(".", exception: false) } || "DEFAULT"
    end

    # Forks. Ruby flushes its streams at a fork, and a stream of the file's own might fail then. So
    # the real streams are in place during the fork.
    #
    # @return [Integer, nil] nil in the child
    def fork
      out = $stdout
      err = $stderr
      $stdout = stream(1)
      $stderr = stream(2)
      # The child must not inherit the zygote's handler: its children are its own.
      Process.fork.tap { |pid| trap("CHLD", @on_child) if @on_child && !pid }
    ensure
      $stdout = out
      $stderr = err
    end

    # Prepares a fork to serve as a lane.
    #
    # @return [Boolean] whether the process writes its stack on SIGQUIT
    def begin
      [$stdout, $stderr].grep(IO) { |stream| stream.sync = true }
      # The engine sends SIGQUIT to learn where a call without progress is. A handler of the file's
      # own is kept.
      before = trap("QUIT") { write_stack }
      is_free = [nil, "DEFAULT", "SYSTEM_DEFAULT", "IGNORE"].include?(before)
      trap("QUIT", before) unless is_free
      is_free
    end

    # Writes why a lane ends.
    #
    # @return [Integer] the exit code of the lane
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

    # Writes the frames of all threads, the innermost first, in Python's format. An error here must
    # not make the function fail.
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
