# frozen_string_literal: true

module Crosslane
  # Threads for short jobs. An idle thread waits for the next job, and ends after some seconds
  # without one.
  # @api private
  class Threads
    # The seconds that an idle thread waits for work.
    IDLE = 5

    LOCK = Thread::Mutex.new
    private_constant :LOCK
    @idle = []

    # A block that one of the threads runs.
    class Job
      def initialize(work)
        @work = work
        @over = Thread::Queue.new
      end

      def run
        return unless LOCK.synchronize { @thread = Thread.current unless @over.closed? }

        @work.call
      ensure
        finish
      end

      def finish = LOCK.synchronize { @over.close }

      def wait = @over.pop

      # Ends the job. If it has begun, its thread ends too.
      def abandon
        LOCK.synchronize do
          next if @over.closed?

          @over.close
          @thread&.kill
        end
      end
    end
    private_constant :Job

    # One of the threads.
    class Worker
      def initialize(job)
        @job = job
        @wake = Thread::ConditionVariable.new
        @thread = Thread.new { work }
        @thread.report_on_exception = false
        @thread.name = "crosslane-worker"
      end

      # False in a fork of the process that made the thread.
      def alive? = @thread.alive?

      # Gives the thread its next job. The caller holds the lock.
      def take(job)
        @job = job
        @wake.signal
      end

      private

      def work
        while @job
          @job.run
          LOCK.synchronize { rest }
        end
      ensure
        # A job may have ended this thread before the thread's next job began.
        LOCK.synchronize { Threads.leave(self) }
        @job&.finish
      end

      def rest
        @job = nil
        Threads.join(self)
        @wake.wait(LOCK, IDLE)
        Threads.leave(self) unless @job
      end
    end
    private_constant :Worker

    class << self
      # Runs the block on `count` threads at once, and waits until all have returned. If the wait is
      # ended by an exception, the threads are ended too.
      def run(count, &work)
        jobs = Array.new(count) { Job.new(work) }
        jobs.each { |job| hand(job) }
        jobs.each(&:wait)
      ensure
        jobs&.each(&:abandon)
      end

      # Adds a worker to the idle ones, or removes it. The caller holds the lock.
      def join(worker) = @idle.push(worker)
      def leave(worker) = @idle.delete(worker)

      private

      def hand(job)
        LOCK.synchronize do
          worker = @idle.pop
          worker = @idle.pop until worker.nil? || worker.alive?
          worker ? worker.take(job) : Worker.new(job)
        end
      end
    end
  end
end
