# frozen_string_literal: true

require "monitor"

module Crosslane
  # V8 contexts in this process. Ruby's lock is given up while V8 boots, runs or waits, so that other threads go on.
  #
  #   require "crosslane/v8"
  #   snapshot = Crosslane::V8::Snapshot.new(File.read("libraries.js"))
  #   context = Crosslane::V8::Context.new(snapshot: snapshot, timeout: 1, max_memory: 100_000_000)
  #   context.eval("[1, 2, 3].map((x) => x * 2)") # => [2, 4, 6]
  #   context.call("format", 1.5, { currency: "EUR" })
  module V8
    # What goes wrong in V8.
    class Error < StandardError; end

    # A script that cannot be read, a value that was thrown: with JavaScript's stack before Ruby's.
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

    # A script that cannot be read.
    class ParseError < RuntimeError; end

    # A script ran for too long.
    class TimeoutError < Error; end

    # A context used too much memory, or the process has none for a value that passes into JavaScript or out of it.
    class MemoryError < Error; end

    # {Context#stop} has ended a script.
    class StoppedError < Error; end
  end
end

require "crosslane/v8_native"

module Crosslane
  module V8
    # @return [String] such as "10.2.154.26-node.26"
    def self.version = Native.version

    # What the native half calls.
    # @api private
    class Bridge
      # An exception on its way through V8.
      attr_writer :left

      def initialize(blocks, output)
        @blocks = blocks
        @output = output
      end

      def left
        @left.tap { @left = nil }
      end

      # What JavaScript sees of an exception: the name and the message, a line each. Its own errors come back as they
      # were.
      def told(exception)
        return "#{exception.name}\n#{exception.javascript_message}" if exception.is_a?(RuntimeError)

        "ProgramError\n#{exception.message}"
      end

      # Puts JavaScript's frames where the exception that is on its way has passed them: behind those of the block.
      def passed(frames)
        backtrace = @left.backtrace
        return if backtrace.nil? || @left.frozen?

        frames = frames.lines.map(&:strip).reject(&:empty?)
        # Further calls may be between that block and this one.
        at = (0...backtrace.size).find do |index|
          backtrace[index].match?(CALLED) && !backtrace[index + 1]&.start_with?("at ")
        end
        # A call inside of this one has had its frames too.
        @left.set_backtrace((backtrace[..at] - frames) + frames + backtrace[at + 1..]) if at
      end

      CALLED = /\A#{Regexp.escape(__FILE__)}:\d+:in .*call_block/
      private_constant :CALLED

      def call_block(number, arguments) = @blocks.fetch(number).call(*arguments)

      def print(_error, text) = @output&.puts(text)
    end
    private_constant :Bridge

    # A String whose bytes JavaScript gets, as a Uint8Array, whatever its encoding. Without this, only binary Strings
    # that are not plain ASCII are bytes, and others are texts.
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

    # A heap in which a script has run: contexts boot from it in a moment, without running it again.
    #
    # V8 can have contexts of one snapshot at a time in a process; another is refused as long as they live.
    class Snapshot
      # @api private
      attr_reader :native

      # @param source [String] a script; what it defines is there in every context
      # @param name [String] its file, for messages
      # @param warm_up [String, nil] see {#warm_up}
      # @raise [RuntimeError] what it throws
      # @raise [Error] if contexts of another snapshot live
      def initialize(source = "", name: "(snapshot)", warm_up: nil)
        @native = source.is_a?(Native::Snapshot) ? source : Native::Snapshot.build(source, name, Bridge.new([], nil))
        @native = @native.warm_up(warm_up, "(warm-up)", Bridge.new([], nil)) if warm_up
      end

      # A snapshot from what {#dump} returned.
      #
      # @param dumped [String] from a file of your own: V8 trusts it
      # @raise [Error] if it is damaged, or of another version
      def self.load(dumped) = new(Native::Snapshot.load(dumped))

      # Runs a script whose functions are compiled then, and forgets what else it did: contexts that boot from the
      # result need not compile them.
      #
      # @return [Snapshot] another
      def warm_up(source, name: "(warm-up)") = Snapshot.new(native.warm_up(source, name, Bridge.new([], nil)))

      # @return [String] the bytes, for {.load}
      def dump = native.dump

      # @return [Integer] bytes
      def size = native.size

      def inspect = "#<Crosslane::V8::Snapshot #{size} bytes>"
    end

    # A heap, and a global object, of its own. Threads may share it: they take turns.
    class Context
      # What a context may use unless it is told.
      MAX_MEMORY = 512 << 20

      # @param snapshot [Snapshot, nil]
      # @param timeout [Numeric, nil] seconds that each call may take
      # @param max_memory [Integer] bytes of the heap and of array buffers
      # @param output [#puts] where `console` writes
      # @param locked [Boolean] whether to hold Ruby's lock while it boots, to measure what that costs
      # @raise [Error] if contexts of another snapshot live
      def initialize(snapshot: nil, timeout: nil, max_memory: MAX_MEMORY, output: $stderr, locked: false)
        raise ArgumentError, "timeout is a positive number of seconds" unless timeout.nil? || timeout.positive?
        raise ArgumentError, "max_memory is a positive number of bytes" unless max_memory.positive?

        @lock = Monitor.new
        @blocks = []
        @output = output
        # The snapshot lives as long as what booted from it.
        @snapshot = snapshot
        @bridge = Bridge.new(@blocks, output)
        @native = Native::Context.boot(snapshot&.native, timeout&.to_f, max_memory, @bridge, locked)
      end

      # Runs a script.
      #
      # @param source [String]
      # @param name [String] its file, for messages
      # @return [Object] the last value: nil, true, false, Integer, Float, String, Array, Hash, Time. A promise is the
      #   value that it is settled with; an empty Hash if it waits
      # @raise [RuntimeError, TimeoutError, MemoryError, StoppedError]; exceptions of attached blocks as themselves
      def eval(source, name: "(eval)") = @lock.synchronize { @native.eval(source, name, false) }

      # Runs a script, as {#eval}. If its value is a promise, that must be settled.
      #
      # @return [Object] see {#eval}
      # @raise [Error] if the promise is not settled when the script, and all that it has begun, is done: then only
      #   another call can settle it, since there are no timers
      def eval_await(source, name: "(eval)") = @lock.synchronize { @native.eval(source, name, true) }

      # Calls a function.
      #
      # @param path [String, Symbol] from the global object: "format", "Math.max"
      # @return [Object] see {#eval}
      def call(path, *arguments) = @lock.synchronize { @native.invoke(path.to_s, arguments, false) }

      # Calls a function, as {#call}. If its value is a promise, that must be settled.
      #
      # @return [Object] see {#eval}
      # @raise [Error] see {#eval_await}
      def call_await(path, *arguments) = @lock.synchronize { @native.invoke(path.to_s, arguments, true) }

      # Makes a block a function of JavaScript.
      #
      #   context.attach("read") { |path| File.read(path) }
      #
      # @param path [String, Symbol] see {#call}; objects that are missing on the way are created
      # @return [self]
      def attach(path, callable = nil, &block)
        callable ||= block
        raise ArgumentError, "attach needs a block" unless callable.respond_to?(:call)

        @lock.synchronize do
          # Whatever ends this, no later block gets the number that the script may know.
          @blocks << callable
          @native.attach(path.to_s, @blocks.size - 1)
        end
        self
      end

      # Ends what the context does at this moment, and only that: the call, with those that it is inside of, raises
      # {StoppedError}, unless a limit or the thread's own end comes first. A block that it waits for is not
      # interrupted. The context can be used afterwards.
      #
      # Any thread may do this, a block of the script, and a signal handler.
      #
      # @return [Boolean] false if the context did nothing
      def stop = @native.stop

      # @return [Integer] bytes in use, what is dead among them
      def memory = @lock.synchronize { @native.memory }

      # What V8 counts of its heap. `heap_size_limit` is where V8 itself would end the process, far above `max_memory`.
      #
      # @return [Hash{Symbol => Integer}] bytes by V8's names (`:used_heap_size`, `:total_physical_size`,
      #   `:external_memory` of array buffers, ...), and numbers of contexts
      # @raise [MemoryError] if the context has used so much that it was given up
      def heap_stats = @lock.synchronize { @native.heap_stats }.transform_keys(&:to_sym)

      # Has V8 free all that it can, at once.
      #
      # @return [nil]
      def low_memory_notification = @lock.synchronize { @native.collect }

      # Frees the heap now. The context cannot be used any more.
      #
      # @raise [Error] in a block that the context is calling
      def dispose = @lock.synchronize { @native.dispose }

      def inspect = "#<Crosslane::V8::Context>"
    end

    # Contexts that are booted ahead of time, by a thread of the pool.
    #
    #   pool = Crosslane::V8::Pool.new(snapshot, size: 4)
    #   pool.with { |context| context.call("render", page) }
    class Pool
      # @param snapshot [Snapshot, nil]
      # @param size [Integer] contexts to keep ready
      # @param options [Hash] those of {Context#initialize}
      def initialize(snapshot = nil, size: 2, **options)
        raise ArgumentError, "size is at least 1" unless size.positive?

        @make = -> { Context.new(snapshot: snapshot, **options) }
        @ready = Thread::Queue.new
        @lock = Mutex.new
        @wanted = Thread::Queue.new
        @closed = false
        start
        size.times { @wanted << :context }
      end

      # Lends a fresh context, and disposes of it behind the block: nothing is carried over to the next.
      #
      # @yieldparam context [Context]
      # @return [Object] what the block returns
      def with
        context = check_out
        yield context
      ensure
        context&.dispose
      end

      # A fresh context, for good.
      #
      # @return [Context]
      # @raise [Error] why none can be booted
      def check_out
        start
        @wanted << :context
        context = @ready.pop || raise(Error, "the pool is closed")
        raise context if context.is_a?(Exception)

        context
      end

      # @return [Integer] contexts that wait
      def ready = @ready.size

      # Disposes of the contexts that wait. Threads that wait for one get an {Error}.
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

      # The thread that boots; a fork has lost it.
      def start
        @lock.synchronize do
          raise Error, "the pool is closed" if @closed
          return if @thread&.alive?

          @thread = Thread.new { boot while @wanted.pop }
          @thread.name = "crosslane-v8-pool"
        end
      end

      def boot
        @ready << @make.call
      rescue StandardError => e
        # Whoever waits should know; the next tries again.
        @ready << e
      end
    end
  end
end
