# frozen_string_literal: true

require "monitor"

module Crosslane
  # The rows of a query. DuckDB holds them in columns; each row becomes Ruby objects when it is
  # read. Several threads may use one result: each thread reads all rows.
  class Result
    include Enumerable

    # @return [Array<String>] the names of the columns
    attr_reader :names

    # @api private
    def initialize(native)
      @native = native
      @names = native.names
      @chunks = []
      @complete = false
      @lock = Monitor.new
    end

    # @return [Array<String, nil>] the SQL types of the columns; nil for a type that Ruby can read
    #   only after a cast
    def types = @native.types

    # @return [Integer] the number of rows that an INSERT, UPDATE or DELETE changed
    def changed = @native.changed

    # @yieldparam row [Array] the values of a row
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

    # @yieldparam row [Hash{Symbol => Object}] the values of a row, by the columns' names
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

    # Moves the unread rows into an Arrow C stream. Afterwards the result has no rows.
    #
    #   result.arrow_stream { |address| Arrow::RecordBatchReader.import(address) }
    #
    # @yieldparam address [Integer] of a `struct ArrowArrayStream`. It is freed after the block;
    #   data that was imported from it stays valid
    # @return [Object] the block's result
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

  # A prepared statement. Several threads may use it: it is prepared again on the connection of each
  # thread.
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

    # @return [Hash{String => String, nil}] the SQL types of the parameters, by their names; the
    #   names are numbers for `?`; the type is nil if the statement does not determine it
    def parameters = described(&:parameters).to_h

    # @return [Array<String>, nil] the names of the result's columns; nil if they depend on the
    #   parameters
    def names = columns&.map(&:first)

    # @return [Array<String, nil>, nil] the SQL types of the result's columns, nil for a type that
    #   Ruby can read only after a cast; see {#names}
    def types = columns&.map(&:last)

    private

    # If the columns are not known yet, DuckDB gives one column with the name `unknown`.
    def columns
      columns = described(&:columns)
      columns unless columns == [["unknown", nil]]
    end

    def described
      @database.with_connection { |connection| yield on(connection) }
    end

    def on(connection)
      # A block may have been defined after the preparation; the statement must then be prepared
      # again.
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

  # A query that runs in the background, on its own thread and its own connection.
  #
  #   pending = db.start("SELECT count(*) FROM range(100_000_000_000)")
  #   pending.interrupt if pending.wait(10).nil?
  #   pending.progress # => 12.5
  class PendingQuery
    # {#result} raises this after {#interrupt}.
    class Interrupted < Error; end

    # @api private
    def initialize(connection, &work)
      @connection = connection
      # An interruption has no effect after the query has ended.
      @thread = Thread.handle_interrupt(Interrupted => :never) { Thread.new { run(&work) } }
      @thread.report_on_exception = false
    end

    # @return [Float, nil] the progress of the query in percent; nil if DuckDB does not know it
    def progress
      finished? ? 100.0 : @connection.progress
    rescue Error
      # The query has ended between the two steps.
      100.0
    end

    def finished? = !@thread.alive?

    # Waits until the query has ended.
    #
    # @param seconds [Numeric, nil] the most seconds to wait
    # @return [self, nil] nil if it still runs
    def wait(seconds = nil)
      self if @thread.join(seconds)
    end

    # Ends the query. If it has already ended, this does nothing.
    #
    # @return [self]
    def interrupt
      @thread.raise(Interrupted, "the query was interrupted")
      self
    end

    # @return [Result] the rows; it waits for the end of the query
    # @raise [Error] see {Database#query}; {Interrupted} after {#interrupt}
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
    rescue Exception => e # rubocop:disable Lint/RescueException -- {#result} raises it
      @error = e
    ensure
      @connection.close
      Host.forget
    end
  end

  # Adds rows to a table, or gives rows to a query.
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
    # @return [Boolean] whether DuckDB has got rows; it may have written some of them already
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
