# frozen_string_literal: true

require "crosslane"
require "digest"
require "rbconfig"

module Crosslane
  # The zygote: loads one library, then forks a lane whenever the engine asks for one. The engine starts it with a
  # control socket as descriptor 3 (docs/protocol.md); it ends when that does, and takes its lanes with it.
  class Zygote
    CONTROL = 3
    # Lanes give way before the database does when the system runs out of memory.
    OOM_SCORE = "800"
    # Objects, of 40 bytes.
    ROOM = 100_000
    # Threads that a fork can do without: Timeout starts its own again there.
    DISPENSABLE = ["Timeout stdlib thread"].freeze
    private_constant :CONTROL, :OOM_SCORE, :ROOM, :DISPENSABLE

    # The life of a zygote's process.
    def self.run
      # From here on this is a child of the process that the engine started, which sees to it that nothing is left.
      Native.supervise
      zygote = new
      zygote.serve if zygote.load
    rescue Errno::EPIPE, IOError
      nil
    end

    # The same process, started anew: its lanes load the file themselves.
    #
    # @param path [String]
    # @param loaded [String] what tells what was loaded from anything else
    def self.run_anew(path, loaded)
      new(path, loaded).serve
    rescue Errno::EPIPE, IOError
      nil
    end

    # The names of the threads that a file has started, and a fork would miss.
    #
    # @return [Array<String>]
    def self.lost_threads
      threads = Thread.list.reject { |thread| thread == Thread.current || DISPENSABLE.include?(thread.name) }
      threads.map { |thread| thread.name || thread.inspect[/ (\S+:\d+) /, 1] || "one without a name" }
    end

    # Prints what a file declares, or why it cannot be loaded, as JSON on a line of its own. What the file itself
    # prints goes to stderr.
    def self.check(path)
      answer = $stdout.dup
      $stdout.reopen($stderr)
      functions = Library.load(path).map(&:message)
      answer.puts JSON.generate(functions: functions, lost: lost_threads)
    rescue Exception => e # rubocop:disable Lint/RescueException -- the user should read it, whatever it is
      name, message, traceback = Errors.describe(e)
      answer.puts JSON.generate(failure: { class: name, message: message, traceback: traceback })
    end

    # The path is of what each lane loads itself, because a fork of what was loaded here would miss threads.
    def initialize(path = nil, loaded = nil)
      # What a lane prints is read by the line.
      $stdout.sync = $stderr.sync = true
      @path = path
      @loaded = loaded
      @socket = IO.for_fd(CONTROL, autoclose: false)
      @socket.close_on_exec = true
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

      environment = ENV.to_h
      folder = Dir.pwd
      declared, text = read(path)
      lost = Zygote.lost_threads
      @control.loaded(declared, "Ruby #{RUBY_VERSION}", text, !lost.empty?)
      start_anew(path, lost, environment, folder) unless lost.empty?
      true
    rescue Exception => e # rubocop:disable Lint/RescueException -- the engine's user should read it, whatever it is
      @control.failed(*Errors.describe(e))
      false
    end

    # Forks a lane per request until the engine closes the socket.
    def serve
      # A heap with room, so that a lane's collections are rare: each looks at all that is alive.
      Array.new(ROOM) { +"" }.clear
      # Lanes share what was loaded; objects that are old already are not touched, and so not copied, by their
      # collectors.
      4.times { GC.start }
      @wakeup, bell = IO.pipe
      ring = ->(_) { bell.write_nonblock(".", exception: false) }
      trap("CHLD", ring)
      trap("INT") do
        @interrupted = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
        ring.call(nil)
      end
      loop { break unless turn }
    ensure
      end_lanes if Process.pid == @pid
    end

    private

    # Loads a file: what the engine is told of its functions, and what tells its text from any other.
    def read(path)
      @functions, text = Library.read(path)
      open_streams
      declared = JSON.generate(@functions.map(&:message))
      loaded = Digest::SHA256.hexdigest("#{declared} #{text}")
      raise Error, "#{path} has changed since it was loaded; load it again" unless [nil, loaded].include?(@loaded)

      @loaded = loaded
      [declared, text]
    end

    # Loads the file in a lane. As in a zygote, it must load no library: it could be itself.
    def reload
      ENV["CROSSLANE_ZYGOTE"] = Process.pid.to_s
      read(@path)
      ENV.delete("CROSSLANE_ZYGOTE")
    end

    # Becomes a zygote that has loaded nothing, and has the lanes load the file: all that was loaded here is gone.
    def start_anew(path, lost, environment, folder)
      stream(2).puts "crosslane: #{path}: its top level starts threads, which a fork would not have: " \
                     "#{lost.tally.map { |name, count| count > 1 ? "#{name} (#{count})" : name }.join(", ")}. " \
                     "So each worker loads the file itself, which takes longer, and shares no memory with the " \
                     "others. Better start them when a function is first called."
      options = ["-I#{File.expand_path("..", __dir__)}", "-rcrosslane/zygote"]
      script = ["-e", "Crosslane::Zygote.run_anew(*ARGV)"]
      exec(environment, RbConfig.ruby, *options, *script, path, @loaded,
           CONTROL => CONTROL, chdir: folder, unsetenv_others: true)
    rescue SystemCallError
      # Forks may do.
    end

    def turn
      ready, = IO.select([@socket, @wakeup])
      if ready.include?(@wakeup)
        @wakeup.read_nonblock(4096, exception: false)
        @control.interrupted(@interrupted) if @interrupted
        @interrupted = nil
        reap
      end
      return true unless ready.include?(@socket)

      message = @control.receive
      case message&.first
      when :fork then fork_lane(*message.drop(1))
      when :unfork then @lanes.key(message.last)&.then { |pid| kill_group(pid) }
      end
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
      pid = with_own_streams { |out, err| Process.fork { live(out, err, spin, *descriptors) } }
      @lanes[pid] = lane
      @control.forked(lane)
    rescue SystemCallError => e
      @control.unforked(lane, "fork: #{e.message}")
    ensure
      descriptors.each { |descriptor| IO.for_fd(descriptor).close } if Process.pid == @pid
    end

    # Opens the streams again that a file has closed. What it has put in their place stays.
    def open_streams
      $stdout = stream(1) if closed?($stdout)
      $stderr = stream(2) if closed?($stderr)
    end

    def stream(number) = IO.for_fd(number, "w", autoclose: false).tap { |stream| stream.sync = true }

    def closed?(stream) = stream.is_a?(IO) && stream.closed?

    # Ruby flushes its streams at a fork; what a file has put in their place may fail at that.
    def with_own_streams
      out = $stdout
      err = $stderr
      [out, err].each { |stream| flush(stream) }
      $stdout = stream(1)
      $stderr = stream(2)
      yield out, err
    ensure
      $stdout = out
      $stderr = err
    end

    def flush(stream)
      stream.flush
    rescue StandardError
      nil
    end

    # The life of a forked lane.
    def live(out, err, spin, memory, socket, log)
      status = 1
      Process.setpgid(0, 0)
      Native.die_with_parent
      exit!(0) if Process.ppid != @pid
      %w[CHLD INT].each { |signal| trap(signal, "DEFAULT") }
      @socket.autoclose = true
      @socket.close
      log = IO.for_fd(log)
      [$stdout, $stderr].each { |stream| stream.reopen(log) }
      log.close
      $stdout = out
      $stderr = err
      [out, err].grep(IO) { |stream| stream.sync = true }
      File.write("/proc/self/oom_score_adj", OOM_SCORE)
      reload if @path
      Native.serve(memory, socket, @functions, spin, false)
      status = 0
    rescue SystemExit => e
      status = e.status
    rescue Exception => e # rubocop:disable Lint/RescueException -- the last words of the process
      stream(2).puts e.full_message(highlight: false)
    ensure
      exit!(status)
    end
  end
end
