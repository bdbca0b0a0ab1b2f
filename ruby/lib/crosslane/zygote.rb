# frozen_string_literal: true

require "crosslane"

module Crosslane
  # The zygote: loads one library, then forks a lane whenever the engine asks for one. The engine starts it with a
  # control socket as descriptor 3 (docs/protocol.md); it ends when that does, and takes its lanes with it.
  class Zygote
    CONTROL = 3
    # Lanes give way before the database does when the system runs out of memory.
    OOM_SCORE = "800"
    # Objects, of 40 bytes.
    ROOM = 100_000
    private_constant :CONTROL, :OOM_SCORE, :ROOM

    # The life of a zygote's process.
    def self.run
      # What a lane prints is read by the line.
      $stdout.sync = $stderr.sync = true
      socket = IO.for_fd(CONTROL, autoclose: false)
      socket.close_on_exec = true
      zygote = new(socket)
      zygote.serve if zygote.load
    rescue Errno::EPIPE, IOError
      nil
    end

    # Prints what a file declares, or why it cannot be loaded, as JSON on a line of its own. What the file itself
    # prints goes to stderr.
    def self.check(path)
      answer = $stdout.dup
      $stdout.reopen($stderr)
      answer.puts JSON.generate(functions: Library.load(path).map(&:message))
    rescue Exception => e # rubocop:disable Lint/RescueException -- the user should read it, whatever it is
      name, message, traceback = Errors.describe(e, path)
      answer.puts JSON.generate(failure: { class: name, message: message, traceback: traceback })
    end

    def initialize(socket)
      @socket = socket
      @control = Native::Control.new(CONTROL)
      @functions = []
      # Numbers of the living lanes by their process ids.
      @lanes = {}
      @pid = Process.pid
    end

    # Answers the first message: loads the library that it names.
    def load
      _, kind, path, = @control.receive
      return false unless kind

      raise DeclarationError, "a Ruby library is a file, not a #{kind}" unless kind == "file"

      @functions = Library.load(path)
      @control.loaded(JSON.generate(@functions.map(&:message)), "Ruby #{RUBY_VERSION}")
      true
    rescue Exception => e # rubocop:disable Lint/RescueException -- the engine's user should read it, whatever it is
      @control.failed(*Errors.describe(e, path || ""))
      false
    end

    # Forks a lane per request until the engine closes the socket.
    def serve
      # A heap with room, so that a lane's collections are rare: each looks at all that is alive.
      Array.new(ROOM) { +"" }.clear
      # Lanes share what was loaded; objects that are old already are not touched, and so not copied, by their
      # collectors.
      4.times { GC.start }
      # From here on the end of the engine is noticed by the socket, so that the lanes' own children are ended before
      # the zygote is.
      Native.die_with_parent(Signal.list["TERM"])
      @wakeup, bell = IO.pipe
      ring = ->(_) { bell.write_nonblock(".", exception: false) }
      trap("TERM", ring)
      trap("CHLD", ring)
      trap("INT") { @interrupted = true && ring.call(nil) }
      loop { break unless turn }
    ensure
      end_lanes if Process.pid == @pid
    end

    private

    def turn
      ready, = IO.select([@socket, @wakeup])
      if ready.include?(@wakeup)
        @wakeup.read_nonblock(4096, exception: false)
        return false if Process.ppid == 1

        @control.interrupted if @interrupted
        @interrupted = false
        reap
      end
      return true unless ready.include?(@socket)

      message = @control.receive
      fork_lane(*message.drop(1)) if message
      message
    end

    # Reports every lane that ended.
    def reap
      while (pid, code, signal = Native.ended_child)
        lane = @lanes.delete(pid)
        # While it is not reaped its group is still its own.
        kill_group(pid) if lane
        Process.wait(pid)
        @control.exited(lane, code, signal) if lane
      end
    end

    def end_lanes
      @lanes.each_key { |pid| kill_group(pid) }
      @lanes.each_key { |pid| Process.wait(pid) }
    end

    def kill_group(pid)
      Process.kill(:KILL, -pid)
    rescue Errno::ESRCH
      # It had no time to make its group.
      Process.kill(:KILL, pid)
    end

    def fork_lane(lane, spin, *descriptors)
      pid = fork { live(spin, *descriptors) }
      @lanes[pid] = lane
      @control.forked(lane, pid)
    rescue SystemCallError => e
      @control.unforked(lane, "fork: #{e.message}")
    ensure
      descriptors.each { |descriptor| IO.for_fd(descriptor).close } if Process.pid == @pid
    end

    # The life of a forked lane.
    def live(spin, memory, socket, log)
      status = 1
      Process.setpgid(0, 0)
      Native.die_with_parent(Signal.list["KILL"])
      exit!(0) if Process.ppid != @pid
      %w[TERM CHLD INT].each { |signal| trap(signal, "DEFAULT") }
      @socket.autoclose = true
      @socket.close
      log = IO.for_fd(log)
      [$stdout, $stderr].each { |stream| stream.reopen(log).sync = true }
      log.close
      File.write("/proc/self/oom_score_adj", OOM_SCORE)
      Native.serve(memory, socket, @functions, spin, false)
      status = 0
    rescue SystemExit => e
      status = e.status
    rescue Exception => e # rubocop:disable Lint/RescueException -- the last words of the process
      warn e.full_message(highlight: false)
    ensure
      exit!(status)
    end
  end
end
