# frozen_string_literal: true

require "etc"

module Crosslane
  # What a server says about one of its functions.
  #
  # @!attribute [r] name
  #   @return [String] as SQL calls it
  # @!attribute [r] signature
  #   @return [String] such as `initials(name VARCHAR) -> VARCHAR`
  # @!attribute [r] kind
  #   @return [Symbol] `:scalar`, `:table`, `:aggregate` or `:stream`
  # @!attribute [r] description
  #   @return [String] its docstring, or the comment above it
  # @!attribute [r] file
  #   @return [String] where it is defined, on the server's machine
  # @!attribute [r] line
  #   @return [Integer] the line there, from 1
  ServedFunction = Struct.new(:name, :signature, :kind, :description, :file, :line)

  # A server's functions, for any number of threads, without a database.
  #
  #   Crosslane::Client.open("crosslane://host") do |client|
  #     client.call(:initials, "Ada Byron")
  #   end
  #
  # Calls go side by side; those beyond `lanes` wait in line, in their order. A function's time limit, retries and
  # errors are those of a local one. A lost connection is made anew by the next call.
  class Client
    MOST_LANES = 1024
    MOST_DEPTH = 64
    # What an argument of any type is in SQL.
    TYPES = {
      Float => "DOUBLE", TrueClass => "BOOLEAN", FalseClass => "BOOLEAN", Date => "DATE",
      Time => "TIMESTAMP WITH TIME ZONE", Symbol => "VARCHAR", NilClass => "INTEGER"
    }.freeze
    # How functions of each kind are used.
    USES = {
      scalar: "use call or call_batch", table: "use scan", aggregate: "use aggregate",
      stream: "use map"
    }.freeze
    # A function, and what of it is needed to call it.
    Known = Struct.new(:function, :index, :parameters, :variadic, :optional)
    private_constant :MOST_LANES, :MOST_DEPTH, :TYPES, :USES, :Known

    # Connects, and closes the client behind a block.
    #
    # @param (see #initialize)
    # @yieldparam client [Client]
    # @return [Client, Object] what the block returns, if there is one
    # @raise (see #initialize)
    def self.open(address, **options)
      client = new(address, **options)
      return client unless block_given?

      begin
        yield client
      ensure
        client.close
      end
    end

    # @param address [String] such as `crosslane://host:7411`, `crosslane+tls://host` or `crosslane+unix:///path`;
    #   several, with commas between them, are servers with the same functions
    # @param token [String, nil] what the server asks for; by default that of the variable `CROSSLANE_TOKEN`
    # @param lanes [Integer, nil] how many calls are at work at a time, by default one per processor; each has
    #   a connection
    # @raise [Error] if no server can be reached, or it refuses
    # @raise [ArgumentError] if the address is none
    def initialize(address, token: nil, lanes: nil)
      lanes ||= [Etc.nprocessors, MOST_LANES].min
      @lanes = checked("lanes", lanes, MOST_LANES)
      token ||= ENV.fetch("CROSSLANE_TOKEN", nil)
      @address = address
      @native = Native::Client.new(address, token&.empty? ? nil : token, @lanes)
      known = @native.functions.each_with_index.map do |(signature, said), index|
        describe(signature, JSON.parse(said), index)
      end
      @functions = known.to_h { |one| [one.function.name, one.function] }.freeze
      @known = known.to_h { |one| [one.function.name.downcase, one] }
    end

    # @return [Hash{String => ServedFunction}] the functions by their names, as the server had them when the client
    #   connected
    attr_reader :functions

    # The result of a scalar function for one row of arguments.
    #
    # @param function [String, Symbol] its name
    # @param arguments [Array] its arguments, in their order
    # @param named [Hash{Symbol => Object}] or by their names
    # @raise [Error] with the exception of the function, or what became of its worker or the server
    # @raise [TypeError, RangeError, ArgumentError] if the arguments are not what it takes
    def call(function, *arguments, **named)
      call_all(function, arguments, named) { |value| [value] }.first
    end

    # The results of a scalar function for columns of arguments, over all lanes if that pays.
    #
    # @param function [String, Symbol] its name
    # @param columns [Array<Array>] the values of each argument
    # @param named [Hash{Symbol => Array}] or by their names
    # @return [Array]
    # @raise (see #call)
    def call_batch(function, *columns, **named)
      call_all(function, columns, named) { |column| array(column) }
    end

    # The result of an aggregate for all rows of columns, or with `by`, for the rows of each key. All rows go to one
    # worker.
    #
    # @param function [String, Symbol] its name
    # @param columns [Array<Array>] the values of each argument
    # @param by [Array, nil] the key of each row
    # @param named [Hash{Symbol => Array}] or the columns by their names
    # @return [Object, Hash] the result; or each key's, in the order in which they come first
    # @raise (see #call)
    def aggregate(function, *columns, by: nil, **named)
      known, columns, = prepare(function, :aggregate, columns, named) { |column| array(column) }
      raise ArgumentError, "#{known.function.signature} has no columns; use by:" if by.nil? && columns.empty?

      places = {}
      groups = by && array(by).map { |key| places[key] ||= places.size }
      rows = rows_of(groups ? [*columns, groups] : columns)
      results = @native.aggregate(known.index, columns, groups || ([0] * rows), groups ? places.size : 1)
      groups ? places.keys.zip(results).to_h : results.first
    end

    # The rows of a table function, to be read once. They have a worker until they are read, or closed.
    #
    # @param function [String, Symbol] its name
    # @param (see #call)
    # @return [ServedRows]
    # @raise (see #call)
    def scan(function, *arguments, **named)
      known = find(function, :table)
      values = bind(known, arguments, named).map { |_, _, value| [value] }
      ServedRows.new(@native.scan(known.index, values))
    end

    # Rows through a stream function, over all lanes. The results are rows, to be read once, and have workers while they
    # are read.
    #
    #   client.map(CSV.foreach("flights.csv"), :late).each { |row| p row }
    #
    # The reader is read while results are taken, by the thread that takes them. Memory is constant, however many rows
    # there are: who takes results slowly slows down the workers, and they the reader.
    #
    # @param reader [#each] of rows: each an Array of the columns' values in their order, or a Hash or a Struct with
    #   the columns' names
    # @param function [String, Symbol] its name
    # @param ordered [Boolean] whether results come in the order of the input; else they come as they are ready
    # @param depth [Integer] how many batches a worker has at most
    # @param lanes [Integer, nil] how many workers there are; by default those of the client
    # @return [ServedStream]
    # @raise [ArgumentError] if there is no such stream function, or an option cannot have its value
    # @raise [TypeError] if the reader has no `each`
    def map(reader, function, ordered: true, depth: 2, lanes: nil)
      known = find(function, :stream)
      raise TypeError, "map reads what has each, not #{reader.class}" unless reader.respond_to?(:each)

      lanes = checked("lanes", lanes || @lanes, MOST_LANES)
      depth = checked("depth", depth, MOST_DEPTH)
      ServedStream.new(@native.map(known.index, lanes, depth, ordered ? true : false), reader)
    end

    # Ends the connections. Calls that wait raise an {Error}. It may be called twice.
    #
    # @return [void]
    def close = @native.close

    # @return [String]
    def inspect = "#<#{self.class} #{@address}>"

    private

    def checked(option, value, most)
      return value if value.is_a?(Integer) && value.between?(1, most)

      raise ArgumentError, "#{option} is a whole number from 1 to #{most}, not #{value.inspect}"
    end

    def describe(signature, said, index)
      name, parameters, _, variadic = Native.parse_signature(signature)
      function = ServedFunction.new(
        name, signature, said["kind"].to_sym, said["description"], said["file"], said["line"]
      ).freeze
      Known.new(function, index, parameters, variadic, said["named"])
    end

    def find(name, kind)
      known = @known[name.to_s.downcase]
      raise ArgumentError, "#{@address} has no function #{name}; it has #{functions.keys.join(", ")}" unless known

      own = known.function.kind
      return known if own == kind

      raise ArgumentError, "#{name} is of the kind #{own}: #{USES.fetch(own)}"
    end

    # The arguments, each with its name and its type.
    def bind(known, values, named)
      named = named.transform_keys(&:to_s)
      *fixed, rest = known.variadic ? known.parameters : [*known.parameters, nil]
      left = fixed.drop(values.size)
      refuse(known, left, values.size - fixed.size, named)
      bound = fixed.zip(values).take(values.size).map { |(name, type), value| [name, type, value] }
      bound += left.map { |name, type| [name, type, named[name]] }
      bound + values.drop(fixed.size).map { |value| [*rest, value] }
    end

    def refuse(known, left, beyond, named)
      names = left.map(&:first)
      missing = names.zip(known.optional.last(names.size)).find { |name, optional| !optional && !named.key?(name) }
      wrong = named.keys.find { |name| !names.include?(name) }
      what = if wrong then "#{wrong} is given twice, or is no parameter"
             elsif missing then "the argument #{missing.first} is missing"
             elsif beyond.positive? && !known.variadic then "#{beyond} argument(s) too many"
             end
      raise ArgumentError, "#{what}: #{known.function.signature}" if what
    end

    def call_all(function, given, named, &)
      known, columns, types = prepare(function, :scalar, given, named, &)
      @native.call(known.index, types, columns, rows_of(columns) || 1)
    end

    # A function, its columns, and all their types as text if it depends on the columns which they are.
    def prepare(function, kind, given, named)
      known = find(function, kind)
      bound = bind(known, given, named).map { |name, type, value| [name, type, yield(value)] }
      if bound.any? { |_, type,| type == "ANY" }
        types = bound.map { |name, type, column| type == "ANY" ? type_of(name, column) : type }
      end
      [known, bound.map(&:last), types && "(#{types.join(", ")})"]
    end

    def array(column)
      raise TypeError, "a column is an Array, not #{column.class}" unless column.respond_to?(:to_ary)

      column.to_ary
    end

    def rows_of(columns)
      rows = columns.map(&:size).uniq
      raise ArgumentError, "columns of #{rows.sort.join(" and ")} rows" if rows.size > 1

      rows.first
    end

    # The type of an argument that may have any.
    def type_of(name, column)
      value = column.find { |one| !one.nil? }
      case value
      when Integer then value.bit_length < 64 ? "BIGINT" : "HUGEINT"
      when String then value.encoding == Encoding::BINARY ? "BLOB" : "VARCHAR"
      else
        TYPES.find { |type, _| value.instance_of?(type) }&.last or
          raise TypeError, "#{name}: a #{value.class} is no argument for a parameter of any type"
      end
    end
  end

  # The rows of a server's table function, to be read once.
  class ServedRows
    include Enumerable

    # @api private
    def initialize(native)
      @native = native
    end

    # @yieldparam row [Array] its values
    # @return [self, Enumerator]
    # @raise [Error] with the exception of the function, or what became of its worker or the server
    def each(&block)
      return enum_for(:each) unless block

      while (rows = @native.fetch)
        rows.each(&block)
      end
      self
    end

    # Gives the worker back, if not all rows were read.
    #
    # @return [void]
    def close = @native.close
  end

  # The results of a server's stream function: rows, to be read once.
  class ServedStream
    include Enumerable

    # @api private
    def initialize(native, reader)
      @native = native
      @reader = reader
    end

    # Reads the reader, and gives the results. However it is left, the workers are given back.
    #
    # @yieldparam row [Array] its values
    # @return [self, Enumerator]
    # @raise [Error] with the exception of the function, or what became of its worker or the server; or if the stream
    #   was read or closed before
    # @raise [TypeError, RangeError, ArgumentError] if a row of the reader is not what the function takes
    def each(&block)
      return enum_for(:each) unless block

      reader, @reader = @reader, nil
      raise Error, "the stream was read or closed before; call map again" unless reader

      begin
        reader.each { |row| give(&block) if @native.add(row) }
        @native.finish
        give(&block)
      ensure
        @native.close
      end
      self
    end

    # Gives the workers back, if not all results were read.
    #
    # @return [void]
    def close
      @reader = nil
      @native.close
    end

    private

    # Gives the results that come before it wants more rows.
    def give(&block)
      while (rows = @native.fetch)
        rows.each(&block)
      end
    end
  end
end
