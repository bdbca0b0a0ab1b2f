# frozen_string_literal: true

module Crosslane
  # A table function of a file: what `udtf` declares.
  class Table < Declaration
    DEFAULTS = {
      nulls: :skip, deterministic: true, vectorized: false, partitions: nil, cardinality: nil, timeout: nil,
      memory_limit: nil, on_error: :fail, retries: 0
    }.freeze
    # The keyword by which a block asks for the names of the columns that a query wants.
    WANTED = :wanted
    # The most rows that go to the engine at once.
    MOST_ROWS = 2048
    private_constant :WANTED, :MOST_ROWS

    # @return [Array<String>] the names of its columns
    attr_reader :columns

    # @return [Integer, nil] how many rows it has, about
    attr_reader :cardinality

    def kind = "table"

    # @return [Array<Boolean>] for each parameter, whether SQL names it, because the block takes it as a keyword
    def named = @parameters.map { |name, _| keywords(callable).include?(name.to_sym) }

    def message
      super.merge(named: named, partitions: !@partitions.nil?, cardinality: cardinality)
    end

    # What follows is called by the native half.

    # @api private
    # @return [String] what it is, as JSON
    def specification = JSON.generate(message)

    # A scan: its rows, of the wanted columns.
    #
    # @api private
    # @param partition [String, nil] as {#parts} gave it
    # @param wanted [Array<Integer>, nil] places of columns
    def scan(partition, wanted, *values)
      wanted ||= [*0...columns.size]
      positional, given = arguments(values)
      # Another worker of this library has dumped it.
      positional.unshift(Marshal.load(partition)) if partition # rubocop:disable Security/MarshalLoad
      narrow = asks?
      given[WANTED] = columns.values_at(*wanted).freeze if narrow
      Rows.new("STRUCT#{@fields}", wanted, narrow) { |take| run(positional, given, wanted, narrow, take) }
    end

    # The partitions, as bytes.
    #
    # @api private
    def parts(*values)
      Rows.new("BLOB", [], false) do |take|
        listed(of_partitions(*arguments(values)), "partitions").each { |part| take.call(dumped(part)) }
      end
    end

    # What yields rows.
    #
    # @api private
    class Rows
      # @return [String] a STRUCT of the columns, or a BLOB
      attr_reader :type

      # @return [Array<Integer>] the places of the columns that the query wants
      attr_reader :wanted

      def initialize(type, wanted, narrow, &each)
        @type = type
        @wanted = wanted
        @narrow = narrow
        @each = each
      end

      # Whether rows may have only the wanted columns.
      def narrow? = @narrow

      def each_row(&take) = @each.call(take)
    end
    private_constant :Rows

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

    # What the engine takes.
    MOST_CARDINALITY = 2**63 - 1
    private_constant :MOST_CARDINALITY

    def check_result
      unless @returns.start_with?("TABLE(")
        raise error("a table function's signature ends with its columns: -> TABLE(i BIGINT), not -> #{@returns}")
      end

      @fields = @returns.delete_prefix("TABLE")
      @columns = Declaration.columns(@fields).map(&:first)
    end

    def check_parameters
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
      missing = callable.parameters.filter_map { |kind, key| key if kind == :keyreq } - known
      raise error("its block needs the keyword #{missing.first}, which is no parameter") if missing.any?
    end

    # Whether the block wants to know what the query wants.
    def asks? = keywords(callable).include?(WANTED) && @parameters.none? { |name, _| name == WANTED.to_s }

    # The keywords that something callable takes.
    def keywords(callable)
      callable = callable.method(:call) unless callable.respond_to?(:parameters)
      callable.parameters.filter_map { |kind, key| key if %i[key keyreq].include?(kind) }
    end

    # What a block is given: parameters that SQL names, and does not give, keep the block's own values.
    def arguments(values)
      names = @parameters.map(&:first).zip(values, named)
      given, positional = names.partition(&:last)
      [positional.map { |entry| entry[1] }, given.to_h { |entry| [entry[0].to_sym, entry[1]] }.compact]
    end

    # Calls what lists the partitions, with the arguments that it takes: by their names, or else in their order.
    def of_partitions(positional, given)
      taken = @partitions.respond_to?(:parameters) ? @partitions.parameters : @partitions.method(:call).parameters
      names = taken.filter_map { |kind, name| name.to_s if %i[req opt].include?(kind) }
      unnamed = @parameters.map(&:first).zip(named).reject(&:last).map(&:first)
      if taken.none? { |kind,| kind == :rest } && (names - unnamed).empty?
        positional = unnamed.zip(positional).to_h.values_at(*names)
      end
      @partitions.call(*positional, **given.slice(*keywords(@partitions)))
    end

    def dumped(part)
      Marshal.dump(part)
    rescue TypeError => e
      raise error("a partition goes to another worker by Marshal, which cannot have it: #{e.message}")
    end

    def listed(rows, what)
      return rows if rows.respond_to?(:each)

      raise TypeError, "#{what} returned #{rows.class}, which has no each"
    end

    def run(positional, given, wanted, narrow, take)
      rows = listed(callable.call(*positional, **given), "the block")
      return rows.each(&take) unless @vectorized

      rows.each { |batch| batch.is_a?(Exception) ? take.call(batch) : slice(batch, wanted, narrow, take) }
    end

    # Yields the wanted columns of a batch, so many rows at a time.
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

    # How many rows a batch has of which no column is wanted.
    def rows_of(batch)
      first = case batch
              when Array then batch.first
              when Hash then batch.each_value.first
              else of_names(batch, columns.first)
              end
      first.nil? ? 0 : first.size
    end
  end

  module DSL
    # Declares a table function for SQL: a block, or the method whose `def` follows. It returns anything with `each`
    # that yields rows: an Array of the columns' values, a Hash or an object by their names, or for one column the
    # value itself.
    #
    #   udtf "numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)" do |n, step: 1|
    #     0.step(n - 1, step)
    #   end
    #
    # Parameters that the block takes as keywords are named in SQL, and may be left out: `numbers(5, step := 2)`. If it
    # has a keyword `wanted`, it gets the names of the columns that the query wants, and rows may have only these.
    #
    # @param signature [String] name, parameters and columns, in SQL's types
    # @param method [Symbol, nil] as of {#udf}
    # @param vectorized [Boolean] it yields batches: an Array of columns, or a Hash of them
    # @param partitions [#call, nil] gets the arguments and returns a list; the block is called for each of these, which
    #   is its first argument, on as many workers as the engine has threads
    # @param cardinality [Integer, nil] how many rows there are, about
    # @param nulls [:skip, :call] `:skip`: a NULL argument without a name gives an empty table without a call
    # @param on_error [:fail, :null] `:null`: a yielded exception, or a row that is none, is a row of NULLs; an
    #   exception that is raised ends the table
    # @param options [Hash] `deterministic`, `timeout` (for a row), `memory_limit` and `retries`, as of {#udf}
    # @raise [DeclarationError] if this cannot work
    # @return [Table, nil]
    def udtf(signature, method = nil, **options, &block)
      Library.current.declare(Table, signature, method, options, block, caller_locations(1, 1).first)
    end
  end
end
