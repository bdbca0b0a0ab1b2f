# frozen_string_literal: true

require "timeout"
require "crosslane/worker/threads"

module Crosslane
  # Calls a function for many rows of a batch at once, on threads. This is for functions that wait.
  class Runner
    def initialize(declaration, host)
      @host = host
      @callable = declaration.called
      @concurrency = declaration.concurrency
      @timeout = declaration.timeout
      @retries = declaration.retries
      @null_on_error = declaration.on_error == "null"
    end

    # @param rows [Array<Array, nil>] arguments of the rows; nil for a row that is not called
    # @param clock [#call] gets the number of finished rows
    # @param spent [Integer] the tries of each row before this call
    # @return [Array] the results; the number of errors that became nil; the number of retries; the
    #   exception that ended the call, and its row; the tries of the rows that were tried again
    def call(rows, clock, spent)
      batch = Batch.new(rows, clock, spent)
      threads = [@concurrency, rows.size].min
      until batch.over?
        batch.working = threads
        Threads.run(threads) { work(batch) }
      end
      batch.outcome
    end

    # The state that the threads of one call share.
    class Batch
      attr_reader :spent
      # The number of threads that take rows.
      attr_writer :working

      def initialize(rows, clock, spent)
        @rows = rows
        @clock = clock
        @spent = spent
        @tries = {}
        # Rows whose thread the function has ended. They are called again.
        @again = []
        @lock = Mutex.new
        @results = Array.new(rows.size)
        @next = @done = @errors = @retries = @working = 0
        # The times until which rows wait before they are called again.
        @rests = []
        @failure = @row = nil
      end

      def outcome = [@results, @errors, @retries, @failure, @row, @tries]

      # Whether no row remains to be called. Threads may have ended themselves before.
      def over? = @lock.synchronize { @failure || (@again.empty? && @rows[@next..].none?) }

      # The next row, its arguments and the number of its earlier tries; or nil.
      def take
        @lock.synchronize do
          return if @failure
          return [@again.first, @rows[@again.first], @tries[@again.shift]] if @again.any?

          @next += 1 while @next < @rows.size && @rows[@next].nil?
          return if @next >= @rows.size

          row = @next
          @next += 1
          [row, @rows[row], @spent]
        end
      end

      def done(row, result)
        @lock.synchronize do
          @results[row] = result
          @clock.call(@done += 1)
        end
      end

      # Waits before a row is called again. The engine is told while all rows at work wait. If one of
      # them does not, it may be stuck, and its timeout counts.
      def rest(pause)
        until_then = now + pause
        @lock.synchronize do
          @rests << until_then
          tell_rests
        end
        sleep(pause)
      ensure
        @lock.synchronize { @rests.delete_at(@rests.index(until_then) || @rests.size) }
      end

      # A thread has taken its last row.
      def leave
        @lock.synchronize do
          @working -= 1
          tell_rests
        end
      end

      def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

      # With the lock.
      def tell_rests
        @clock.rest([@rests.min - now, 0].max) if @rests.any? && @rests.size == @working
      end

      def failed(row, error) = @lock.synchronize { @failure, @row = error, row unless @failure }

      def count_error = @lock.synchronize { @errors += 1 }

      def count_retry(row, tries)
        @lock.synchronize do
          @retries += 1
          @tries[row] = tries
        end
      end

      # Queues a row for another thread, unless its retries are used up.
      def again?(row, retries)
        tries = @lock.synchronize { @tries.fetch(row, @spent) } + 1
        return false if tries > retries

        count_retry(row, tries)
        @lock.synchronize { @again << row }
        true
      end
    end
    private_constant :Batch

    private

    def work(batch)
      while (row, arguments, tries = batch.take)
        # The function has ended the thread that called this row before.
        batch.rest(Native.pause(tries - 1, nil)) if tries > batch.spent
        batch.done(row, attempt(batch, row, arguments, tries))
        row = nil
      end
    rescue Exception => e # rubocop:disable Lint/RescueException -- the query raises it again
      batch.failed(row, e)
      row = nil
    ensure
      batch.leave
      left(batch, row) if row
    end

    # The function has ended its own thread during this row.
    def left(batch, row)
      return if batch.again?(row, @retries)
      return batch.count_error if @null_on_error

      batch.failed(row, ThreadError.new("the function ended the thread that called it"))
    end

    def attempt(batch, row, arguments, tries)
      Timeout.timeout(@timeout, nil, "timed out after #{@timeout} s") { @callable.call(*arguments) }
    rescue Exception => e # rubocop:disable Lint/RescueException -- the call has failed
      # Some exceptions end a program. In the engine's own process, they are raised to that program.
      # In a worker, they are failed calls.
      raise if @host && Native.final?(e)

      pause = tries < @retries ? Native.pause(tries, Errors.retry_after(e)) : nil
      if pause
        batch.rest(pause)
        tries += 1
        batch.count_retry(row, tries)
        retry
      end
      raise unless @null_on_error

      batch.count_error
      nil
    end
  end
end
