# frozen_string_literal: true

require "timeout"

module Crosslane
  # Calls a function for many rows of a batch at once, on threads, for functions that wait.
  class Runner
    # The first pause in seconds before a failed call is tried again; it doubles with each try.
    BACKOFF = 0.05
    private_constant :BACKOFF

    def initialize(declaration)
      @callable = declaration.callable
      @concurrency = declaration.concurrency
      @timeout = declaration.timeout
      @retries = declaration.retries
      @null_on_error = declaration.on_error == "null"
    end

    # @param rows [Array<Array, nil>] arguments; nil for rows that are not called
    # @param clock [#call] is told how many rows are done
    # @return [Array] results, number of errors that became nil, number of retries, the exception that ended it
    #   and its row
    def call(rows, clock)
      batch = Batch.new(rows, clock)
      threads = Array.new([@concurrency, rows.size].min) { Thread.new { work(batch) } }
      threads.each { |thread| thread.report_on_exception = false }
      threads.each(&:join)
      batch.outcome
    ensure
      threads&.each(&:kill)
    end

    # What the threads of one call share.
    class Batch
      def initialize(rows, clock)
        @rows = rows
        @clock = clock
        @lock = Mutex.new
        @results = Array.new(rows.size)
        @next = @done = @errors = @retries = 0
        @failure = @row = nil
      end

      def outcome = [@results, @errors, @retries, @failure, @row]

      # The next row and its arguments, or nil.
      def take
        @lock.synchronize do
          @next += 1 while @next < @rows.size && @rows[@next].nil?
          return if @failure || @next >= @rows.size

          row = @next
          @next += 1
          [row, @rows[row]]
        end
      end

      def done(row, result)
        @lock.synchronize do
          @results[row] = result
          @clock.call(@done += 1)
        end
      end

      def failed(row, error) = @lock.synchronize { @failure, @row = error, row unless @failure }

      def count_error = @lock.synchronize { @errors += 1 }

      def count_retry = @lock.synchronize { @retries += 1 }
    end
    private_constant :Batch

    private

    def work(batch)
      while (row, arguments = batch.take)
        batch.done(row, attempt(batch, arguments))
      end
    rescue Exception => e # rubocop:disable Lint/RescueException -- it is raised again by the query
      batch.failed(row, e)
    end

    def attempt(batch, arguments)
      tries = 0
      begin
        Timeout.timeout(@timeout, nil, "timed out after #{@timeout} s") { @callable.call(*arguments) }
      rescue StandardError, ScriptError, NoMemoryError, SystemStackError
        if tries < @retries
          sleep(BACKOFF * (2**[tries, 6].min))
          tries += 1
          batch.count_retry
          retry
        end
        raise unless @null_on_error

        batch.count_error
        nil
      end
    end
  end
end
