# frozen_string_literal: true

module Crosslane
  # The common part of functions that yield rows: table functions and stream functions.
  #
  # @api private
  module GivesRows
    # The most rows that go to the engine in one batch.
    MOST_ROWS = 2048
    private_constant :MOST_ROWS

    # @return [Array<String>] the names of the function's columns
    attr_reader :columns

    # Yields rows to the native part.
    class Rows
      # @return [String] the SQL type of a row: a STRUCT of the columns, or a BLOB
      attr_reader :type

      # @return [Array<Integer>] the indexes of the columns that the query needs
      attr_reader :wanted

      def initialize(type, wanted, narrow, &each)
        @type = type
        @wanted = wanted
        @narrow = narrow
        @each = each
      end

      # Whether rows may have only the needed columns.
      def narrow? = @narrow

      def each_row(&take) = @each.call(take)
    end

    protected

    def take_columns(fields)
      @fields = fields
      @columns = Declaration.columns(fields).map(&:first)
    end

    private

    def check_result
      unless @returns.start_with?("TABLE(")
        raise error("a table function's signature ends with its columns: -> TABLE(i BIGINT), not -> #{@returns}")
      end

      take_columns(@returns.delete_prefix("TABLE"))
    end

    def listed(rows, what)
      raise TypeError, "#{what} returned #{rows.class}, which has no each" unless rows.respond_to?(:each)
      return rows unless rows.is_a?(Hash) && !@vectorized && rows.keys.map(&:to_s) == columns

      raise TypeError, "#{what} returned a Hash of the columns, which is one row: put it into an Array"
    end

    # Yields rows, or the needed columns of batches.
    def give(rows, wanted, narrow, take)
      return rows.each(&take) unless @vectorized

      rows.each do |*parts|
        # Several yielded values are the columns of a batch.
        batch = parts.size == 1 ? parts.first : parts
        batch.is_a?(Exception) ? take.call(batch) : slice(batch, wanted, narrow, take)
      end
    end

    # Yields the needed columns of a batch, at most `MOST_ROWS` rows at a time.
    def slice(batch, wanted, narrow, take)
      parts = wanted_columns(batch, wanted, narrow)
      counts = parts.map(&:size).uniq
      raise ArgumentError, "the columns of a batch have #{counts.join(", ")} values" if counts.size > 1

      count = counts.first || rows_of(batch)
      0.step(count - 1, MOST_ROWS) do |at|
        size = [MOST_ROWS, count - at].min
        take.call([size, count == size ? parts : parts.map { |part| part[at, size] }])
      end
    end

    def wanted_columns(batch, wanted, narrow)
      names = columns.values_at(*wanted)
      found = batch.is_a?(Array) ? of_array(batch, wanted, narrow) : names.map { |name| of_names(batch, name) }
      found.map { |column| column.is_a?(Array) ? column : listed(column, "a column of a batch").to_a }
    end

    def of_array(batch, wanted, narrow)
      return batch if narrow && batch.size == wanted.size
      return batch.values_at(*wanted) if batch.size == columns.size

      raise ArgumentError, "a batch of #{batch.size} columns where #{columns.size} are due: #{columns.join(", ")}"
    end

    def of_names(batch, name)
      return batch.fetch(name.to_sym) { batch.fetch(name) } if batch.is_a?(Hash)

      batch.public_send(name)
    rescue KeyError, NoMethodError
      raise ArgumentError, "a batch of #{batch.class} lacks the column #{name}"
    end

    # The number of rows of a batch of which the query needs no column.
    def rows_of(batch)
      first = case batch
              when Array then batch.first
              when Hash then batch.each_value.first
              else of_names(batch, columns.first)
              end
      first.nil? ? 0 : first.size
    end
  end
  private_constant :GivesRows

  # A table function of a file, declared with `udtf`.
  class Table < Declaration
    include GivesRows

    DEFAULTS = {
      nulls: :skip, deterministic: true, vectorized: false, partitions: nil, cardinality: nil, timeout: nil,
      memory_limit: nil, on_error: :fail, retries: 0
    }.freeze
    # The keyword with which a block asks for the names of the columns that a query needs.
    WANTED = :wanted
    private_constant :WANTED

    # @return [Integer, nil] the approximate number of rows
    attr_reader :cardinality

    def kind = "table"

    # @return [Array<Boolean>] for each parameter, whether SQL passes it by name, because the block
    #   takes it as a keyword
    def named = @parameters.map { |name, _| keywords(callable).include?(name.to_sym) }

    def message
      super.merge(named: named, partitions: !@partitions.nil?, cardinality: cardinality)
    end

    # The native part calls the methods from here on.

    # Scans the table: the rows, with the needed columns.
    #
    # @api private
    # @param partition [String, nil] a partition from {#parts}, as bytes
    # @param wanted [Array<Integer>, nil] the indexes of the needed columns
    def scan(partition, wanted, *values)
      # The bytes come from another worker of this library.
      part = Marshal.load(partition) if partition # rubocop:disable Security/MarshalLoad
      rows(partition ? [part] : [], wanted, values)
    end

    # The partitions, each as bytes.
    #
    # @api private
    def parts(*values) = in_bytes { |take| partitions(values).each { |part| take.call(dumped(part)) } }

    # {HostTable} uses the methods from here on, too.

    # The rows of a partition; without partitions, all rows.
    #
    # @api private
    def rows(parts, wanted, values)
      wanted ||= [*0...columns.size]
      positional, given = arguments(values)
      narrow = asks?
      given[WANTED] = columns.values_at(*wanted).freeze if narrow
      Rows.new("STRUCT#{@fields}", wanted, narrow) { |take| run(parts + positional, given, wanted, narrow, take) }
    end

    # Yields bytes.
    #
    # @api private
    def in_bytes(&each) = Rows.new("BLOB", [], false, &each)

    # @api private
    # @return [#each] the partitions
    def partitions(values) = listed(ask(@partitions, values), "partitions")

    # The same table with other columns, such as "(id BIGINT, name VARCHAR)".
    #
    # @api private
    # @raise [DeclarationError]
    def with_columns(fields) = dup.tap { |twin| twin.take_columns(fields) }

    # Calls an object with the arguments that it accepts: keywords by their names, the others in
    # their order.
    #
    # @api private
    def ask(callable, values)
      positional, given = arguments(values)
      taken = parameters_of(callable)
      names = taken.filter_map { |kind, name| name.to_s if %i[req opt].include?(kind) }
      unnamed = @parameters.map(&:first).zip(named).reject(&:last).map(&:first)
      if taken.none? { |kind,| kind == :rest } && (names - unnamed).empty?
        positional = unnamed.zip(positional).to_h.values_at(*names)
      end
      callable.call(*positional, **given.slice(*keywords(callable)))
    end

    private

    def defaults = DEFAULTS

    def set(options)
      super
      @partitions = options[:partitions]
      unless @partitions.nil? || @partitions.respond_to?(:call)
        raise error("partitions returns a list when it is called, such as ->(n) { [*1..n] }; " \
                    "#{@partitions.inspect} cannot be called")
      end

      @cardinality = options[:cardinality]
      return if @cardinality.nil? || (@cardinality.is_a?(Integer) && @cardinality.between?(0, MOST_CARDINALITY))

      raise error("cardinality is a whole number of rows, not #{@cardinality.inspect}")
    end

    # The largest value that the engine accepts.
    MOST_CARDINALITY = 2**63 - 1
    private_constant :MOST_CARDINALITY

    def check_parameters
      raise error("a table function is a block or a method, not the class #{callable}") if callable.is_a?(Class)

      fixed("a table function")
      check_keywords
      count = @parameters.size
      raise error("a function has at most #{most_parameters} parameters, not #{count}") if count > most_parameters

      positional = count - named.count(true) + (@partitions ? 1 : 0)
      kinds = callable.parameters.map(&:first)
      fixed = kinds.count { |kind| %i[req opt].include?(kind) }
      least = callable.is_a?(Proc) && !callable.lambda? ? fixed : kinds.count(:req)
      return if kinds.include?(:rest) ? positional >= least : positional.between?(least, fixed)

      what = @partitions ? "arguments without a name, the partition among them" : "arguments without a name"
      raise error("the block is given #{positional} #{what}, and takes #{fixed}")
    end

    def check_keywords
      known = @parameters.map { |name, _| name.to_sym }
      known << WANTED if asks?
      { "its block" => callable, "partitions" => @partitions }.compact.each do |what, called|
        missing = parameters_of(called).filter_map { |kind, key| key if kind == :keyreq } - known
        raise error("#{what} needs the keyword #{missing.first}, which is no parameter") if missing.any?
      end
    end

    # Whether the block asks for the columns that the query needs.
    def asks? = keywords(callable).include?(WANTED) && @parameters.none? { |name, _| name == WANTED.to_s }

    # The keywords that a callable accepts.
    def keywords(callable) = parameters_of(callable).filter_map { |kind, key| key if %i[key keyreq].include?(kind) }

    def parameters_of(callable)
      callable.respond_to?(:parameters) ? callable.parameters : callable.method(:call).parameters
    end

    # The arguments of the block. An argument that SQL names and does not give is left out, so the
    # block's default applies.
    def arguments(values)
      names = @parameters.map(&:first).zip(values, named)
      given, positional = names.partition(&:last)
      [positional.map { |entry| entry[1] }, given.to_h { |entry| [entry[0].to_sym, entry[1]] }.compact]
    end

    def dumped(part)
      Marshal.dump(part)
    rescue TypeError => e
      raise error("a partition goes to another worker by Marshal, which cannot have it: #{e.message}")
    end

    def run(positional, given, wanted, narrow, take)
      give(listed(callable.call(*positional, **given), "the block"), wanted, narrow, take)
    end
  end

  module DSL
    # Declares a table function for SQL: a block, or the method whose `def` follows. It returns any
    # object with `each` that yields rows. A row is an Array of the columns' values, or a Hash or an
    # object with the columns' names. For a single column, a row may be the value itself.
    #
    #   udtf "numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)" do |n, step: 1|
    #     0.step(n - 1, step)
    #   end
    #
    # SQL passes the parameters by name that the block takes as keywords, and may leave them out:
    # `numbers(5, step := 2)`. With a keyword `wanted`, the block gets the names of the columns that
    # the query needs, and rows may have only these columns.
    #
    # If its only parameter is a table, it is a stream function. It is called once for each batch,
    # with an Array of the batch's rows. It returns the result rows of the batch, or nil for none.
    #
    #   udtf "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, delay INTEGER)" do |flights|
    #     flights.select { |flight| flight.delay > 60 }
    #   end
    #
    # A vectorized stream function gets a Hash of columns by their names. It returns such a Hash, or
    # any object that yields batches. The options of a stream function are `vectorized`,
    # `deterministic`, `timeout`, `memory_limit`, `on_error` and `retries`. It may be stateful as in
    # {#udf}: a class, or a block with `setup` and `teardown`.
    #
    # @param signature [String] name, parameters and columns, in SQL's types
    # @param method [Symbol, nil] as in {#udf}
    # @param vectorized [Boolean] the block yields batches: an Array or a Hash of columns
    # @param partitions [#call, nil] gets the arguments and returns a list; the block is called for
    #   each item, as its first argument, on as many workers as the engine has threads
    # @param cardinality [Integer, nil] the approximate number of rows
    # @param nulls [:skip, :call] `:skip`: a NULL argument that is passed without a name gives an
    #   empty table without a call
    # @param on_error [:fail, :null] `:null`: a yielded exception or an invalid row becomes a row of
    #   NULLs; an exception that is raised ends the table
    # @param options [Hash] `deterministic`, `timeout` (for one row), `memory_limit` and `retries`,
    #   as in {#udf}
    # @raise [DeclarationError] if the declaration is invalid
    # @return [Table, Stream, nil]
    def udtf(signature, method = nil, **options, &block)
      kind = Stream.takes?(signature) ? Stream : Table
      kind = StatefulStream if kind == Stream && Prepares.declared?(method, options)
      Library.current.declare(kind, signature, method, options, block, caller_locations(1, 1).first)
    end
  end
end
