# frozen_string_literal: true

module Crosslane
  # The rows of a query. DuckDB holds them, column by column; they become Ruby objects as they are read.
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
      while !@complete && @chunks.size <= index
        rows = @native.fetch
        rows ? @chunks << rows : @complete = true
      end
      @chunks[index]
    end
  end

  # A prepared statement. It belongs to the connection of the thread that prepared it.
  class Statement
    # @api private
    def initialize(native)
      @native = native
    end

    # @param parameters [Array] see {Database#query}
    # @return [Result]
    def query(*parameters)
      Host.ensure_running
      Result.new(@native.query(parameters))
    end
  end

  # Takes the rows for a table.
  class Appender
    # @api private
    def initialize(native)
      @native = native
      @count = 0
    end

    # Adds a row.
    #
    # @param row [Array] a value for each column
    # @return [self]
    def <<(row)
      @native.row(row.to_a)
      @count += 1
      self
    end

    # @api private
    def fill
      yield
      @native.close
      @count
    ensure
      @native.give_up
    end
  end
end
