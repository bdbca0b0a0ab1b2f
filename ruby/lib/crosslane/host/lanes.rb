# frozen_string_literal: true

require "socket"

module Crosslane
  # The host lanes of this process: threads that run the program's blocks for the database's workers.
  #
  # One thread, the host, serves a control socket as a zygote does (docs/protocol.md): it makes a thread for each lane
  # that is asked for, and ends those whose lane was dropped, whatever they do.
  class Host
    # All blocks that databases of this process know, by their numbers, of which none is used again.
    FUNCTIONS = {} # rubocop:disable Style/MutableConstant
    @added = 0
    @lock = Mutex.new

    class << self
      # Starts the host, if this process has none (any more).
      def ensure_running
        return if @host&.alive?

        @lock.synchronize do
          next if @host&.alive?

          ours, theirs = UNIXSocket.pair
          @host = new(theirs)
          ours.autoclose = false
          Native.start_host(ours.fileno)
        end
      end

      # @return [Integer] the number of a function that was added
      def add(declaration)
        @lock.synchronize do
          FUNCTIONS[@added += 1] = declaration
          @added
        end
      end

      # Forgets the blocks that no database knows any more, and what tables and aggregates have left.
      def forget
        Native.forget_functions(FUNCTIONS)
        HostTable.forget
        HostAggregate.forget
      end

      # @return [Hash{Symbol => Integer}] how many lanes are idle and busy, and were made and ended
      def lanes
        idle, busy, made, ended = Native.host_statistics || [0, 0, 0, 0]
        { idle: idle, busy: busy, made: made, ended: ended }
      end
    end

    Lane = Struct.new(:number, :thread, :watch, :killed)
    private_constant :Lane

    def initialize(socket)
      @pid = Process.pid
      @socket = socket
      @lanes = {}
      @ended = Thread::Queue.new
      @wakeup, @bell = IO.pipe
      @thread = Thread.new { run }
      @thread.name = "crosslane-host"
      @thread.report_on_exception = false
    end

    def alive? = @pid == Process.pid && @thread.alive?

    private

    def run
      @socket.autoclose = false
      @control = Native::Control.new(@socket.fileno)
      nil while turn
    ensure
      @lanes.each_value { |lane| lane.thread.kill }
      @lanes.each_value { |lane| close(lane) }
      hang_up(@socket)
    end

    # Waits for news and acts on them. False when the engine has gone.
    def turn
      # The end of a lane that was killed already is no news, until its thread says so itself.
      ready = Native.poll([@socket.fileno, @wakeup.fileno], @lanes.reject { |_, lane| lane.killed }.keys)
      if ready.delete(@wakeup.fileno)
        @wakeup.read_nonblock(4096, exception: false)
        reap(@ended.pop) until @ended.empty?
      end
      return answer if ready.delete(@socket.fileno)

      # Nobody waits for what these threads do.
      ready.filter_map { |watch| @lanes[watch] }.each do |lane|
        lane.killed = true
        lane.thread.kill
      end
      true
    end

    def answer
      message = @control.receive
      case message&.first
      when :load then @control.loaded("Ruby #{RUBY_VERSION}")
      when :fork then make(*message.drop(1))
      end
      message
    end

    def make(number, spin, memory, socket, log)
      IO.for_fd(log).close
      # The native half owns the descriptor.
      watch = Socket.for_fd(socket).tap { |owned| owned.autoclose = false }.dup
      lane = Lane.new(number, nil, watch)
      lane.thread = thread(lane, memory, socket, spin)
      @lanes[watch.fileno] = lane
      @control.forked(number)
    rescue StandardError, NoMemoryError => e
      [memory, socket].each { |descriptor| IO.for_fd(descriptor).close }
      watch&.close
      @control.unforked(number, "a thread could not be made: #{e.message}")
    end

    def thread(lane, memory, socket, spin)
      thread = Thread.new do
        Native.serve(memory, socket, FUNCTIONS, spin, true)
      ensure
        @ended << lane
        @bell.write_nonblock(".", exception: false)
      end
      thread.name = "crosslane-lane-#{lane.number}"
      thread.report_on_exception = false
      thread
    end

    def reap(lane)
      @lanes.delete(lane.watch.fileno)
      close(lane)
      @control.exited(lane.number, 0, nil)
    end

    def close(lane)
      hang_up(lane.watch)
      lane.watch.close
    end

    # Tells the engine that nobody answers any more, also where a fork holds copies of the socket.
    def hang_up(socket)
      socket.shutdown
    rescue Errno::ENOTCONN, Errno::EPIPE
      # The engine has gone first.
    end
  end
end
