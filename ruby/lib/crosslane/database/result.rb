# frozen_string_literal: true

require "monitor"

module Crosslane
  # The rows of a query. DuckDB holds them, column by column; they become Ruby objects as they are read. Threads may
  # share a result: each reads all rows.
  class Result
    include Enumerable

    # @return [Array<String>] the columns' names
    attr_reader :names

    # @api private
    def initialize(native)
      @native = native
      @names = native.names
      @chunks = []
      @complete = false
      @lock = Monitor.new
    end

    # @return [Array<String, nil>] the columns' types in SQL; nil for those that must be cast to be read
    def types = @native.types

    # @return [Integer] how many rows an INSERT, UPDATE or DELETE changed
    def changed = @native.changed

    # @yieldparam row [Array] its values
    # @return [self, Enumerator]
    def each(&block)
      return enum_for(:each) unless block

      index = 0
      while (rows = chunk(index))
        rows.each(&block)
        index += 1
      end
      self
    end

    # @yieldparam row [Hash{Symbol => Object}] its values by the columns' names
    # @return [self, Enumerator]
    def each_hash
      return enum_for(:each_hash) unless block_given?

      keys = names.map(&:to_sym)
      each { |row| yield keys.zip(row).to_h }
    end

    # @return [Hash{String => Array}] the values of each column
    def columns
      rows = to_a
      names.each_with_index.to_h { |name, index| [name, rows.map { |row| row[index] }] }
    end

    # The rows that were not read yet, as an Arrow C stream. The result gives them away: it has none afterwards.
    #
    #   result.arrow_stream { |address| Arrow::RecordBatchReader.import(address) }
    #
    # @yieldparam address [Integer] of a `struct ArrowArrayStream`, which is freed behind the block; what was
    #   imported from it stays
    # @return [Object] what the block returns
    def arrow_stream
      address = Native.arrow_stream(@native)
      begin
        yield address
      ensure
        Native.free_arrow_stream(address)
      end
    end

    def inspect = "#<Crosslane::Result #{names.zip(types).map { |name, type| "#{name} #{type}" }.join(", ")}>"

    private

    def chunk(index)
      @lock.synchronize do
        while !@complete && @chunks.size <= index
          rows = @native.fetch
          rows ? @chunks << rows : @complete = true
        end
        @chunks[index]
      end
    end
  end

  # A prepared statement. Threads may share it: it is prepared for the connection of each that runs it.
  class Statement
    # @api private
    def initialize(sql, database)
      @sql = sql
      @database = database
      @prepared = {}.compare_by_identity
      @lock = Mutex.new
      database.with_connection { |connection| on(connection) }
    end

    # @param parameters [Array] see {Database#query}
    # @return [Result]
    def query(*parameters)
      Host.ensure_running
      Result.new(@database.with_connection { |connection| @database.keep(on(connection).query(parameters)) })
    end

    # @return [Hash{String => String, nil}] the parameters by their names, which are numbers for `?`, and their types
    #   in SQL; nil for those that the statement leaves open
    def parameters = described(&:parameters).to_h

    # @return [Array<String>, nil] the names of the columns that its rows will have; nil if they depend on parameters
    def names = columns&.map(&:first)

    # @return [Array<String, nil>, nil] their types in SQL, nil for those that must be cast to be read; see {#names}
    def types = columns&.map(&:last)

    private

    # DuckDB has one column that it calls unknown where it knows none.
    def columns
      columns = described(&:columns)
      columns unless columns == [["unknown", nil]]
    end

    def described
      @database.with_connection { |connection| yield on(connection) }
    end

    def on(connection)
      # A block may have got a name since.
      @lock.synchronize do
        @prepared.clear unless @definitions == @database.definitions
        @definitions = @database.definitions
      end
      @prepared[connection] || @database.keep(connection.prepare(@sql)).tap do |prepared|
        @lock.synchronize do
          @prepared.delete_if { |other, _| other.closed? }
          @prepared[connection] = prepared
        end
      end
    end
  end

  # A query that runs beside the program, on a thread and a connection of its own.
  #
  #   pending = db.start("SELECT count(*) FROM range(100_000_000_000)")
  #   pending.interrupt if pending.wait(10).nil?
  #   pending.progress # => 12.5
  class PendingQuery
    # What {#result} raises behind {#interrupt}.
    class Interrupted < Error; end

    # @api private
    def initialize(connection, &work)
      @connection = connection
      # Once the query has ended, nothing is to be interrupted.
      @thread = Thread.handle_interrupt(Interrupted => :never) { Thread.new { run(&work) } }
      @thread.report_on_exception = false
    end

    # @return [Float, nil] how much of the query is done, in percent; nil if DuckDB cannot say
    def progress
      finished? ? 100.0 : @connection.progress
    rescue Error
      # It has ended meanwhile.
      100.0
    end

    def finished? = !@thread.alive?

    # Waits until the query has ended.
    #
    # @param seconds [Numeric, nil] at most so long
    # @return [self, nil] nil if it still runs
    def wait(seconds = nil)
      self if @thread.join(seconds)
    end

    # Ends the query. Nothing happens if it has ended.
    #
    # @return [self]
    def interrupt
      @thread.raise(Interrupted, "the query was interrupted")
      self
    end

    # @return [Result] its rows, when it has ended
    # @raise what {Database#query} raises; {Interrupted}
    def result
      wait
      raise @error if @error

      @result
    end

    # @api private
    def free = interrupt.wait

    private

    def run(&work)
      @result = Thread.handle_interrupt(Interrupted => :immediate, &work)
    rescue Exception => e # rubocop:disable Lint/RescueException -- whoever wants the rows raises it
      @error = e
    ensure
      @connection.close
      Host.forget
    end
  end

  # Takes the rows for a table, or for a query.
  class Appender
    # @api private
    def initialize(native)
      @native = native
    end

    # Adds a row.
    #
    # @param row [Array] a value for each column
    # @return [self]
    def <<(row)
      @native.row(row.to_a)
      self
    end

    # @api private
    # @param stream [Native::ArrowStream]
    # @param names [Array<String>] of the columns
    def fill_from(stream, names)
      nil while @native.take(stream, names)
      @native.close
    end

    # @api private
    # @return [Boolean] whether rows were given to DuckDB, which may have written some of them
    def begun? = @native.begun?

    # @api private
    def free = @native.free

    # @api private
    def fill(rows)
      rows ? rows.each { |row| self << row } : yield(self)
      @native.close
    ensure
      @native.free
    end
  end
end
