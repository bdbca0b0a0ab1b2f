# frozen_string_literal: true

require "monitor"

module Crosslane
  # V8 contexts, in this process or in processes of their own. The thread releases Ruby's lock while V8
  # boots, runs or waits, so other threads can run.
  #
  #   require "crosslane/v8"
  #   snapshot = Crosslane::V8::Snapshot.new(File.read("libraries.js"))
  #   context = Crosslane::V8::Context.new(snapshot: snapshot, timeout: 1, max_memory: 100_000_000)
  #   context.eval("[1, 2, 3].map((x) => x * 2)") # => [2, 4, 6]
  #   context.call("format", 1.5, { currency: "EUR" })
  module V8
    # An error of V8.
    class Error < StandardError; end

    # JavaScript threw a value, or a script is invalid. The backtrace has JavaScript's frames before
    # Ruby's.
    class RuntimeError < Error
      # @return [String] the JavaScript class, such as "TypeError"
      attr_reader :name

      # @return [String] JavaScript's message
      attr_reader :javascript_message

      # @return [Array<String>] JavaScript's frames
      attr_reader :javascript_backtrace

      # @api private
      def initialize(name = "Error", message = nil, stack = "")
        @name = name
        @javascript_message = message.to_s
        @javascript_backtrace = stack.lines.map(&:strip).reject(&:empty?)
        super("#{name}: #{message}")
      end

      def set_backtrace(backtrace)
        super(@javascript_backtrace + (Array(backtrace) - @javascript_backtrace))
      end

      # @return [Array<String>]
      def backtrace
        found = super
        found && (@javascript_backtrace - found) + found
      end
    end

    # A script has invalid syntax.
    class ParseError < RuntimeError; end

    # A script ran for too long.
    class TimeoutError < Error; end

    # A context used too much memory, or the process has no memory for a value that is converted
    # between Ruby and JavaScript.
    class MemoryError < Error; end

    # {Context#stop} has ended a script.
    class StoppedError < Error; end
  end
end

require "crosslane/v8_native"

module Crosslane
  module V8
    # @return [String] the version of V8 in this process, such as "10.2.154.26-node.26"
    def self.version = Native.version

    # The program of contexts in processes of their own. It is beside this file, or beside the extension.
    HOST = [__FILE__, File.expand_path("crosslane.duckdb_extension", __dir__)].filter_map do |file|
      host = File.join(File.dirname(File.realpath(file)), "crosslane-js") if File.exist?(file)
      host if host && File.executable?(host)
    end.first
    private_constant :HOST

    # @api private
    # @return [String, nil] the program for a context, if it has a process of its own
    def self.host(process)
      return unless process

      HOST || raise(Error, "contexts in processes need crosslane-js, which is not beside the gem's library")
    end

    # The methods that the native part calls.
    # @api private
    class Bridge
      # The exception of a block while it passes through V8.
      attr_writer :left

      def initialize(blocks, output)
        @blocks = blocks
        @output = output
      end

      def left
        @left.tap { @left = nil }
      end

      # The text that JavaScript gets of an exception: the name and the message, one line each. An
      # error that came from JavaScript keeps its own name and message.
      def told(exception)
        return "#{exception.name}\n#{exception.javascript_message}" if exception.is_a?(RuntimeError)

        "ProgramError\n#{exception.message}"
      end

      # Adds JavaScript's frames to the backtrace of the exception that passes, after the frames of
      # the block.
      def passed(frames)
        backtrace = @left.backtrace
        return if backtrace.nil? || @left.frozen?

        frames = frames.lines.map(&:strip).reject(&:empty?)
        # Frames of further calls may be between that block and this call.
        at = (0...backtrace.size).find do |index|
          backtrace[index].match?(CALLED) && !backtrace[index + 1]&.start_with?("at ")
        end
        # A nested call has added its own frames before.
        @left.set_backtrace((backtrace[..at] - frames) + frames + backtrace[at + 1..]) if at
      end

      CALLED = /\A#{Regexp.escape(__FILE__)}:\d+:in .*call_block/
      private_constant :CALLED

      def call_block(number, arguments) = @blocks.fetch(number).call(*arguments)

      def print(_error, text) = @output&.puts(text)
    end
    private_constant :Bridge

    # A String that JavaScript gets as a Uint8Array, whatever its encoding. Without this class,
    # JavaScript gets bytes only for binary Strings that are not plain ASCII. It gets a text for
    # each other String.
    #
    #   context.call("checksum", Crosslane::V8::Bytes.new("plain"))
    class Bytes
      # @return [String]
      attr_reader :string

      # @param string [String]
      def initialize(string)
        raise TypeError, "bytes are a String, not #{string.class}" unless string.is_a?(String)

        @string = string
      end

      def inspect = "#<Crosslane::V8::Bytes #{string.bytesize} bytes>"
    end

    # A heap in which a script has run. Contexts boot from it quickly, without running the script
    # again.
    #
    # All contexts that live in this process at the same time have the same snapshot: V8 cannot mix
    # them. Booting from another snapshot raises an error while they live. This does not concern
    # contexts in processes of their own, which have snapshots of their own V8 (`process: true`).
    class Snapshot
      # @api private
      attr_reader :native

      # @param source [String] a script; each context has its definitions
      # @param name [String] its file, for messages
      # @param warm_up [String, nil] see {#warm_up}
      # @param process [Boolean] whether it is for contexts in processes of their own
      # @raise [RuntimeError] the exception of the script
      # @raise [Error] if contexts of another snapshot live
      def initialize(source = "", name: "(snapshot)", warm_up: nil, process: false)
        @process = process
        @native = source
        @native = Native::Snapshot.build(source, name, Bridge.new([], nil), V8.host(process)) if source.is_a?(String)
        @native = @native.warm_up(warm_up, "(warm-up)", Bridge.new([], nil)) if warm_up
      end

      # @return [Boolean] whether it is for contexts in processes of their own
      def process? = @process

      # Makes a snapshot from the bytes that {#dump} returned.
      #
      # @param dumped [String] bytes from a file that you trust: V8 trusts them
      # @param process [Boolean] whether it is for contexts in processes of their own
      # @raise [Error] if the bytes are damaged, or are of another version. With `process`, a context raises it
      def self.load(dumped, process: false) = new(Native::Snapshot.load(dumped, V8.host(process)), process: process)

      # Runs a script to compile the functions that it calls. Its other effects are discarded.
      # Contexts that boot from the result need not compile these functions.
      #
      # @return [Snapshot] a new snapshot
      def warm_up(source, name: "(warm-up)")
        Snapshot.new(native.warm_up(source, name, Bridge.new([], nil)), process: process?)
      end

      # @return [String] the snapshot as bytes, for {.load}
      def dump = native.dump

      # @return [Integer] the size in bytes
      def size = native.size

      def inspect = "#<Crosslane::V8::Snapshot #{size} bytes>"
    end

    # A V8 context with its own heap and its own global object. Several threads may use one context:
    # one call runs at a time.
    #
    # With `process: true`, it runs in a process of its own, on the V8 of Node.js 24. Whatever a script does, it
    # costs no more than this process, and forks of the program do not matter.
    class Context
      # The default limit of a context's memory, in bytes.
      MAX_MEMORY = 512 << 20

      # @param snapshot [Snapshot, nil]
      # @param timeout [Numeric, nil] the most seconds that one call may take
      # @param max_memory [Integer] the most bytes of the heap and of array buffers
      # @param output [#puts] receives the output of `console`
      # @param process [Boolean] whether it has a process of its own; by default as the snapshot
      # @param locked [Boolean] whether the boot keeps Ruby's lock; this serves to measure its cost
      # @raise [Error] if contexts of another snapshot live, or there is no Node.js for the process
      def initialize(snapshot: nil, timeout: nil, max_memory: MAX_MEMORY, output: $stderr,
                     process: snapshot&.process?, locked: false)
        raise ArgumentError, "timeout is a positive number of seconds" unless timeout.nil? || timeout.positive?
        raise ArgumentError, "max_memory is a positive number of bytes" unless max_memory.positive?

        @lock = Monitor.new
        @blocks = []
        @output = output
        # The snapshot must live as long as the contexts that booted from it.
        @snapshot = snapshot
        @bridge = Bridge.new(@blocks, output)
        host = V8.host(process)
        @native = Native::Context.boot(snapshot&.native, timeout&.to_f, max_memory, @bridge, locked, host)
      end

      # Runs a script.
      #
      # @param source [String]
      # @param name [String] its file, for messages
      # @return [Object] the last value: nil, true, false, Integer, Float, String, Array, Hash,
      #   Time. A settled promise gives its value; a pending promise gives an empty Hash
      # @raise [RuntimeError, TimeoutError, MemoryError, StoppedError]; exceptions of attached
      #   blocks are raised unchanged
      def eval(source, name: "(eval)") = @lock.synchronize { @native.eval(source, name, false) }

      # Runs a script, as {#eval} does. If the value is a promise, the promise must be settled.
      #
      # @return [Object] see {#eval}
      # @raise [Error] if the promise is still pending when the script and its microtasks are done.
      #   Since there are no timers, only another call can settle it
      def eval_await(source, name: "(eval)") = @lock.synchronize { @native.eval(source, name, true) }

      # Calls a function.
      #
      # @param path [String, Symbol] the path from the global object: "format", "Math.max"
      # @return [Object] see {#eval}
      def call(path, *arguments) = @lock.synchronize { @native.invoke(path.to_s, arguments, false) }

      # Calls a function, as {#call} does. If the value is a promise, the promise must be settled.
      #
      # @return [Object] see {#eval}
      # @raise [Error] see {#eval_await}
      def call_await(path, *arguments) = @lock.synchronize { @native.invoke(path.to_s, arguments, true) }

      # Makes a block callable from JavaScript as a function.
      #
      #   context.attach("read") { |path| File.read(path) }
      #
      # @param path [String, Symbol] see {#call}; missing objects on the path are created
      # @return [self]
      def attach(path, callable = nil, &block)
        callable ||= block
        raise ArgumentError, "attach needs a block" unless callable.respond_to?(:call)

        @lock.synchronize do
          # The script may know the block's number even if the next step fails. So no later block
          # may get it.
          @blocks << callable
          @native.attach(path.to_s, @blocks.size - 1)
        end
        self
      end

      # Ends the call that runs in the context now, with the calls around it, and no other. The call
      # raises {StoppedError}, unless a limit or the end of the thread comes first. A block that the
      # call waits for is not interrupted. The context can be used afterwards.
      #
      # Any thread, a block of the script and a signal handler may call this.
      #
      # @return [Boolean] false if no call ran in the context
      def stop = @native.stop

      # @return [Boolean] false if its process has ended, or it was disposed of
      def alive? = @native.alive?

      # @return [Integer] bytes in use, including objects that are not collected yet
      def memory = @lock.synchronize { @native.memory }

      # V8's statistics of the heap. At `heap_size_limit`, V8 itself would end the process; this is
      # far above `max_memory`.
      #
      # @return [Hash{Symbol => Integer}] bytes by V8's names (`:used_heap_size`,
      #   `:total_physical_size`, `:external_memory` of array buffers, ...), and numbers of contexts
      # @raise [MemoryError] if the context exceeded its limit and was disposed of
      def heap_stats = @lock.synchronize { @native.heap_stats }.transform_keys(&:to_sym)

      # Makes V8 free all memory that it can free, at once.
      #
      # @return [nil]
      def low_memory_notification = @lock.synchronize { @native.collect }

      # Frees the heap now. The context cannot be used afterwards.
      #
      # @raise [Error] if a block that the context calls does this
      def dispose = @lock.synchronize { @native.dispose }

      def inspect = "#<Crosslane::V8::Context>"
    end

    # Contexts that a thread of the pool boots ahead of time.
    #
    #   pool = Crosslane::V8::Pool.new(snapshot, size: 4)
    #   pool.with { |context| context.call("render", page) }
    class Pool
      # @param snapshot [Snapshot, nil]
      # @param size [Integer] the number of contexts that are kept ready
      # @param options [Hash] those of {Context#initialize}
      def initialize(snapshot = nil, size: 2, **options)
        raise ArgumentError, "size is at least 1" unless size.positive?

        @make = -> { Context.new(snapshot: snapshot, **options) }
        @size = size
        @owner = Process.pid
        @ready = Thread::Queue.new
        @lock = Mutex.new
        @wanted = Thread::Queue.new
        @closed = false
        start
        size.times { @wanted << :context }
      end

      # Lends a new context, and disposes of it after the block. So the next block does not see its
      # state.
      #
      # @yieldparam context [Context]
      # @return [Object] the block's result
      def with
        context = check_out
        yield context
      ensure
        context&.dispose
      end

      # Takes a new context out of the pool; the caller keeps it.
      #
      # @return [Context]
      # @raise [Error] if no context can be booted; the message says why
      def check_out
        loop do
          start
          @wanted << :context
          context = @ready.pop || raise(Error, "the pool is closed")
          raise context if context.is_a?(Exception)
          return context if context.alive?

          # The system may have ended its process meanwhile.
          context.dispose
        end
      end

      # @return [Integer] the number of contexts that are ready
      def ready = @ready.size

      # Disposes of the ready contexts. Threads that wait for a context get an {Error}.
      def close
        @lock.synchronize { @closed = true }
        @thread&.kill
        @thread&.join
        @ready.close
        while (context = @ready.pop)
          context.dispose if context.is_a?(Context)
        end
      end

      private

      # Starts the thread that boots contexts. A fork of the process does not have the thread and
      # starts its own. It cannot use the contexts of its parent.
      def start
        @lock.synchronize do
          raise Error, "the pool is closed" if @closed
          return if @thread&.alive?

          leave_to_parent unless @owner == Process.pid
          @thread = Thread.new { boot while @wanted.pop }
          @thread.name = "crosslane-v8-pool"
        end
      end

      def leave_to_parent
        @owner = Process.pid
        @ready.clear
        @size.times { @wanted << :context }
      end

      def boot
        @ready << @make.call
      rescue StandardError => e
        # A caller that waits gets the error. The next caller starts another attempt.
        @ready << e
      end
    end
  end
end
