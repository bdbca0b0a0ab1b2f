# frozen_string_literal: true

require "socket"

module Crosslane
  # The host lanes of this process: threads that run the program's blocks for the engine workers of
  # the database.
  #
  # One thread, the host, serves a control socket as a zygote does (docs/protocol.md). It makes a
  # thread for each lane that the engine requests. It ends the thread of each lane that the engine
  # has dropped, even in the middle of a call.
  class Host
    # All blocks that databases of this process know, by number. No number is used twice.
    FUNCTIONS = {} # rubocop:disable Style/MutableConstant
    @added = 0
    @lock = Mutex.new

    class << self
      # Starts the host, unless this process has a running one.
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

      # @return [Integer] the number of the added function
      def add(declaration)
        @lock.synchronize do
          FUNCTIONS[@added += 1] = declaration
          @added
        end
      end

      # Forgets the blocks that no database knows any more, and the data that ended tables and
      # aggregates have left.
      def forget
        Native.forget_functions(FUNCTIONS)
        HostTable.forget
        HostAggregate.forget
      end

      # @return [Hash{Symbol => Integer}] the numbers of idle and busy lanes, and of lanes made and
      #   ended since the start
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

    # Waits for events and handles them. Returns false when the engine has closed the socket.
    def turn
      # A lane that was killed is not watched any more: its thread reports its end itself.
      ready = Native.poll([@socket.fileno, @wakeup.fileno], @lanes.reject { |_, lane| lane.killed }.keys)
      if ready.delete(@wakeup.fileno)
        @wakeup.read_nonblock(4096, exception: false)
        reap(@ended.pop) until @ended.empty?
      end
      return answer if ready.delete(@socket.fileno)

      # The engine has dropped these lanes, so no call waits for their threads.
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
      # The native part owns the descriptor and closes it.
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

    # Tells the engine that this end is closed. Closing the descriptor is not enough if a fork of
    # the process has a copy of it.
    def hang_up(socket)
      socket.shutdown
    rescue Errno::ENOTCONN, Errno::EPIPE
      # The engine has closed its end first.
    end
  end
end
