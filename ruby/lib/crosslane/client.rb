# frozen_string_literal: true

require "etc"

module Crosslane
  # The description that a server gives of one of its functions.
  #
  # @!attribute [r] name
  #   @return [String] its name in SQL
  # @!attribute [r] signature
  #   @return [String] such as `initials(name VARCHAR) -> VARCHAR`
  # @!attribute [r] kind
  #   @return [Symbol] `:scalar`, `:table`, `:aggregate` or `:stream`
  # @!attribute [r] description
  #   @return [String] the docstring of the function, or the comment above it
  # @!attribute [r] file
  #   @return [String] the path of its file on the server's machine
  # @!attribute [r] line
  #   @return [Integer] its line in the file, from 1
  ServedFunction = Struct.new(:name, :signature, :kind, :description, :file, :line)

  # Calls the functions of a server, without a database. Any number of threads may use one client.
  #
  #   Crosslane::Client.open("crosslane://host") do |client|
  #     client.call(:initials, "Ada Byron")
  #   end
  #
  # Calls run in parallel. Up to `lanes` calls run at once; further calls wait in a queue, in their
  # order. Timeouts, retries and errors are the same as for a local function. If a connection is
  # lost, the next call connects again.
  class Client
    MOST_LANES = 1024
    MOST_DEPTH = 64
    # The SQL type of a value, for parameters of type ANY.
    TYPES = {
      Float => "DOUBLE", TrueClass => "BOOLEAN", FalseClass => "BOOLEAN", Date => "DATE",
      Time => "TIMESTAMP WITH TIME ZONE", Symbol => "VARCHAR", NilClass => "INTEGER"
    }.freeze
    # The method that calls functions of each kind.
    USES = {
      scalar: "use call or call_batch", table: "use scan", aggregate: "use aggregate",
      stream: "use map"
    }.freeze
    # A function, and the data that a call of it needs.
    Known = Struct.new(:function, :index, :parameters, :variadic, :optional)
    # The functions that a server has at a time: the native client that knows them by their indices,
    # and their descriptions.
    Offer = Struct.new(:native, :functions, :known)
    private_constant :MOST_LANES, :MOST_DEPTH, :TYPES, :USES, :Known, :Offer

    # Connects. With a block, it closes the client after the block.
    #
    # @param (see #initialize)
    # @yieldparam client [Client]
    # @return [Client, Object] the client; with a block, the block's result
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

    # @param address [String] such as `crosslane://host:7411`, `crosslane+tls://host` or
    #   `crosslane+unix:///path`; several addresses, with commas between them, are servers with the
    #   same functions
    # @param token [String, nil] the token that the server requires; by default the value of the
    #   variable `CROSSLANE_TOKEN`
    # @param lanes [Integer, nil] the number of calls that run at once; by default one per
    #   processor; each lane has a connection
    # @raise [Error] if no server can be reached, or the server refuses the client
    # @raise [ArgumentError] if the address is invalid
    def initialize(address, token: nil, lanes: nil)
      lanes ||= [Etc.nprocessors, MOST_LANES].min
      @lanes = checked("lanes", lanes, MOST_LANES)
      token ||= ENV.fetch("CROSSLANE_TOKEN", nil)
      @address = address
      @renewing = Mutex.new
      @offer = offer(Native::Client.new(address, token&.empty? ? nil : token, @lanes))
    end

    # @return [Hash{String => ServedFunction}] the server's functions by name: those that it had
    #   when the client connected, or, with `crosslane serve --watch`, those that it has now
    def functions = current.functions

    # The result of a scalar function for one row of arguments.
    #
    # @param function [String, Symbol] its name
    # @param arguments [Array] its arguments, in their order
    # @param named [Hash{Symbol => Object}] its arguments by their names, instead
    # @raise [Error] with the exception of the function, or the failure of its worker or of the
    #   server
    # @raise [TypeError, RangeError, ArgumentError] if the arguments do not fit the function's
    #   parameters
    def call(function, *arguments, **named)
      call_all(function, arguments, named) { |value| [value] }.first
    end

    # The results of a scalar function for columns of arguments. It uses several lanes if that is
    # faster.
    #
    # @param function [String, Symbol] its name
    # @param columns [Array<Array>] the values of each argument
    # @param named [Hash{Symbol => Array}] the columns by the names of the arguments, instead
    # @return [Array]
    # @raise (see #call)
    def call_batch(function, *columns, **named)
      call_all(function, columns, named) { |column| array(column) }
    end

    # The result of an aggregate for all rows of the columns. With `by`, one result for the rows of
    # each key. One worker gets all rows.
    #
    # @param function [String, Symbol] its name
    # @param columns [Array<Array>] the values of each argument
    # @param by [Array, nil] the key of each row
    # @param named [Hash{Symbol => Array}] the columns by their names, instead
    # @return [Object, Hash] the result; with `by`, the result of each key, in the order of the
    #   keys' first rows
    # @raise (see #call)
    def aggregate(function, *columns, by: nil, **named)
      native, known, columns, = prepare(function, :aggregate, columns, named) { |column| array(column) }
      raise ArgumentError, "#{known.function.signature} has no columns; use by:" if by.nil? && columns.empty?

      places = {}
      groups = by && array(by).map { |key| places[key] ||= places.size }
      rows = rows_of(groups ? [*columns, groups] : columns)
      results = native.aggregate(known.index, columns, groups || ([0] * rows), groups ? places.size : 1)
      groups ? places.keys.zip(results).to_h : results.first
    end

    # The rows of a table function. They can be read once. They keep a worker until all are read, or
    # until they are closed.
    #
    # @param function [String, Symbol] its name
    # @param (see #call)
    # @return [ServedRows]
    # @raise (see #call)
    def scan(function, *arguments, **named)
      native, known = find(function, :table)
      values = bind(known, arguments, named).map { |_, _, value| [value] }
      ServedRows.new(native.scan(known.index, values))
    end

    # Sends rows through a stream function, on all lanes. The results are rows that can be read
    # once. They keep workers while they are read.
    #
    #   client.map(CSV.foreach("flights.csv"), :late).each { |row| p row }
    #
    # The thread that takes results also reads the reader. The memory in use does not grow with the
    # number of rows: if results are taken slowly, the workers wait, and the reader is read slowly.
    #
    # @param reader [#each] yields rows: each is an Array of the columns' values in their order, or
    #   a Hash or a Struct with the columns' names
    # @param function [String, Symbol] its name
    # @param ordered [Boolean] whether the results have the order of the input; otherwise each
    #   result comes as soon as it is ready
    # @param depth [Integer] the most batches that one worker has at once
    # @param lanes [Integer, nil] the number of workers; by default the client's lanes
    # @return [ServedStream]
    # @raise [ArgumentError] if there is no such stream function, or an option has an invalid value
    # @raise [TypeError] if the reader has no `each`
    def map(reader, function, ordered: true, depth: 2, lanes: nil)
      native, known = find(function, :stream)
      raise TypeError, "map reads what has each, not #{reader.class}" unless reader.respond_to?(:each)

      lanes = checked("lanes", lanes || @lanes, MOST_LANES)
      depth = checked("depth", depth, MOST_DEPTH)
      ServedStream.new(native.map(known.index, lanes, depth, ordered ? true : false), reader)
    end

    # Closes the connections. Calls that wait raise an {Error}. A second call does nothing.
    #
    # @return [void]
    def close = @offer.native.close

    # @return [String]
    def inspect = "#<#{self.class} #{@address}>"

    private

    def checked(option, value, most)
      return value if value.is_a?(Integer) && value.between?(1, most)

      raise ArgumentError, "#{option} is a whole number from 1 to #{most}, not #{value.inspect}"
    end

    # The functions that a native client knows.
    def offer(native)
      known = native.functions.each_with_index.map do |(signature, said), index|
        describe(signature, JSON.parse(said), index)
      end
      functions = known.to_h { |one| [one.function.name, one.function] }.freeze
      Offer.new(native, functions, known.to_h { |one| [one.function.name.downcase, one] })
    end

    # The functions that the server has now, if it loads its files again.
    def current
      offer = @offer
      return offer unless offer.native.outdated?

      @renewing.synchronize do
        # Another thread may have been faster.
        if @offer.equal?(offer) && (renewed = offer.native.renewed)
          @offer = offer(renewed)
        end
        @offer
      end
    end

    def describe(signature, said, index)
      name, parameters, _, variadic = Native.parse_signature(signature)
      function = ServedFunction.new(
        name, signature, said["kind"].to_sym, said["description"], said["file"], said["line"]
      ).freeze
      Known.new(function, index, parameters, variadic, said["named"])
    end

    # The native client that has a function, and the function.
    def find(name, kind)
      offer = current
      known = offer.known[name.to_s.downcase]
      raise ArgumentError, "#{@address} has no function #{name}; it has #{offer.functions.keys.join(", ")}" unless known

      own = known.function.kind
      return [offer.native, known] if own == kind

      raise ArgumentError, "#{name} is of the kind #{own}: #{USES.fetch(own)}"
    end

    # The arguments in the order of the parameters, each with its name and its type.
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
      native, known, columns, types = prepare(function, :scalar, given, named, &)
      native.call(known.index, types, columns, rows_of(columns) || 1)
    end

    # A native client, its function and the columns. If a parameter has the type ANY, also the types of all arguments,
    # as a text.
    def prepare(function, kind, given, named)
      native, known = find(function, kind)
      bound = bind(known, given, named).map { |name, type, value| [name, type, yield(value)] }
      if bound.any? { |_, type,| type == "ANY" }
        types = bound.map { |name, type, column| type == "ANY" ? type_of(name, column) : type }
      end
      [native, known, bound.map(&:last), types && "(#{types.join(", ")})"]
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

    # The type of an argument for a parameter of type ANY.
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

  # The rows of a server's table function. They can be read once.
  class ServedRows
    include Enumerable

    # @api private
    def initialize(native)
      @native = native
    end

    # @yieldparam row [Array] the values of a row
    # @return [self, Enumerator]
    # @raise [Error] with the exception of the function, or the failure of its worker or of the
    #   server
    def each(&block)
      return enum_for(:each) unless block

      while (rows = @native.fetch)
        rows.each(&block)
      end
      self
    end

    # Gives the worker back if some rows were not read.
    #
    # @return [void]
    def close = @native.close
  end

  # The results of a server's stream function. They are rows that can be read once.
  class ServedStream
    include Enumerable

    # @api private
    def initialize(native, reader)
      @native = native
      @reader = reader
    end

    # Reads the reader and yields the results. When it ends, also by an exception, it gives the
    # workers back.
    #
    # @yieldparam row [Array] the values of a row
    # @return [self, Enumerator]
    # @raise [Error] with the exception of the function, or the failure of its worker or of the
    #   server; also if the stream was read or closed before
    # @raise [TypeError, RangeError, ArgumentError] if a row of the reader does not fit the
    #   function's parameters
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

    # Gives the workers back if some results were not read.
    #
    # @return [void]
    def close
      @reader = nil
      @native.close
    end

    private

    # Yields the results that are ready before the stream needs more rows.
    def give(&block)
      while (rows = @native.fetch)
        rows.each(&block)
      end
    end
  end
end
