# frozen_string_literal: true

module Crosslane
  # The declaration of a function: its signature, its options and its block or method.
  class Declaration
    DEFAULTS = {
      nulls: :skip, deterministic: true, vectorized: false, concurrency: 1, timeout: nil, memory_limit: nil,
      memoize: nil, cache: nil, ttl: nil, rate: nil, budget: nil, batch: nil, workers: nil, gpus: nil, on_error: :fail,
      retries: 0, overload: false, sandbox: nil, allow_read: nil, allow_write: nil, allow_net: nil, allow_run: nil
    }.freeze
    # The options with which a function asks for a sandbox of its own.
    SANDBOX = %i[sandbox allow_read allow_write allow_net allow_run].freeze
    UNITS = {
      "" => 1, "B" => 1, "KB" => 10**3, "MB" => 10**6, "GB" => 10**9, "KIB" => 2**10, "MIB" => 2**20, "GIB" => 2**30
    }.freeze
    # The native part keeps the values of a row on the machine's stack.
    MOST_PARAMETERS = 64
    # The largest values that the engine accepts.
    MOST = {
      concurrency: 65_536, batch: 1_000_000, workers: 1024, gpus: 1024, retries: 1_000_000, timeout: 1_000_000_000,
      memory_limit: 2**50, budget: 10**15
    }.freeze
    private_constant :UNITS, :MOST_PARAMETERS, :MOST

    # The names and types of columns, such as "(id BIGINT, name VARCHAR)".
    #
    # @api private
    # @raise [DeclarationError]
    def self.columns(signature)
      _, columns, _, variadic = Native.parse_signature("columns#{signature} -> BOOLEAN")
      raise ArgumentError, "the number of columns is fixed" if variadic
      raise ArgumentError, "a column has a type, and ANY is none" if columns.any? { |_, type| type == "ANY" }

      columns
    rescue ArgumentError => e
      raise DeclarationError, "columns are such as \"(id BIGINT, name VARCHAR)\": #{e.message}"
    end

    # @return [Array<Array(String, String)>] the parameters' names and types
    attr_reader :parameters

    attr_reader :name, :signature, :callable, :file, :line, :retries, :memory_limit, :timeout, :concurrency

    # @param signature [String] in SQL's types, such as "slug(title VARCHAR) -> VARCHAR"
    # @param callable [Proc, Method]
    # @param options [Hash] see {DSL#udf}
    # @raise [DeclarationError]
    def initialize(signature, callable, **options)
      @callable = callable
      @file, @line = source
      @name = signature.to_s[/\A\s*\w+/].to_s.strip
      @name, @parameters, @returns, @variadic = parse(signature)
      types = @parameters.map { |name, type| "#{quoted(name)} #{type}" }
      types[-1] = "*#{types.last}" if @variadic
      @signature = "#{quoted(@name)}(#{types.join(", ")}) -> #{@returns}"
      check_result
      set(options)
      check_parameters
    end

    # @return [String] the same option, for the native part
    def on_error = @on_error.to_s

    # @return [String] the kind of function
    def kind = "scalar"

    # @return [String] the way of calling it
    def calling
      return "vectorized" if @vectorized

      @concurrency > 1 ? "async" : "row"
    end

    # @param host [Boolean] whether the function runs in the engine's own process
    # @return [Proc, Method, Runner] the object that the native part calls
    def callee(host) = calling == "async" ? Runner.new(self, host) : called

    # @return [Array] an argument that the native part passes before those of each call; or none
    def leading = []

    # @return [Proc, Method] a callable that takes the arguments one by one. A block with other
    #   parameters than `*rest` splits a single Array, and an argument may be such an Array. So that
    #   block gets the Array of all arguments.
    def called
      parts = callable.parameters.map(&:first) & %i[req opt]
      return callable if !@variadic || parts.empty? || callable.is_a?(Method) || callable.lambda?

      block = callable
      ->(*all) { block.call(all) }
    end

    # @return [Array<Boolean>] for each parameter, whether it may be nil
    def admits_null = @parameters.map { @nulls == :call }

    # @return [Hash] the message that docs/protocol.md describes
    def message
      {
        signature: signature, kind: kind, admits_null: admits_null, deterministic: @deterministic,
        calling: calling, concurrency: @concurrency,
        timeout: @timeout, memory_limit: @memory_limit, memoize: @memoize, rate: @rate, budget: @budget,
        batch: @batch, workers: @workers, gpus: @gpus, cache: @cache, ttl: @ttl, own_sandbox: @own_sandbox,
        on_error: on_error,
        retries: @retries,
        file: file, line: line, description: description, overload: @overload
      }
    end

    # @api private
    # @return [String] the same as JSON
    def specification = JSON.generate(message)

    # @return [Boolean] whether only lanes of its own call the function
    def own_lanes? = !(@workers || @gpus || @own_sandbox).nil?

    # @return [String] the comment directly above the declaration
    def description
      return "" unless File.file?(file)

      above = File.foreach(file, encoding: "UTF-8").first(line - 1).map { |text| text.scrub.strip }
      comment = above.reverse.take_while { |text| text.start_with?("#") }.reverse
      comment.map { |text| text.delete_prefix("#").delete_prefix(" ") }.join("\n")
    rescue SystemCallError
      # The file was removed in the meantime.
      ""
    end

    # @return [self]
    # @raise [DeclarationError] if it takes any number of arguments or any type: only scalar
    #   functions may
    def fixed(what)
      raise error("#{what} cannot take any number of arguments") if @variadic
      raise error("#{what} cannot take arguments of any type (ANY)") if @parameters.any? { |_, type| type == "ANY" }

      self
    end

    # @return [DeclarationError] with the function's name, file and line
    def error(message) = DeclarationError.new("#{file}:#{line}: function #{name}: #{message}")

    private

    # The file and the line of the declaration.
    def source
      type = @class || callable
      type.is_a?(Class) ? source_of(type) : callable.source_location || ["<native>", 0]
    end

    # The file and the line of a class. Without a name, those of one of its methods.
    def source_of(type)
      named = type.name && Object.const_source_location(type.name)
      return named if named&.any?

      methods = type.instance_methods(false).map { |name| type.instance_method(name) }
      methods.filter_map(&:source_location).first || ["<native>", 0]
    end

    # The first of the methods that the class of the states or of the called object needs.
    def method_of(signature, *needed)
      @file, @line = source
      @name = signature.to_s[/\A\s*\w+/].to_s.strip
      missing = needed.find { |method| !@class.method_defined?(method) }
      raise error("#{@class} has no method #{missing}") if missing
      raise error("#{@class}.new needs arguments") unless [0, -1].include?(@class.instance_method(:initialize).arity)

      @class.instance_method(needed.first)
    end

    # Checks the options that belong to a block and are called.
    def check_parts(options, parts)
      given = parts.select { |part| options[part] }
      raise error("#{given.first} is for a block; #{@class} has methods") if @class && given.any?

      wrong = given.find { |part| !options[part].respond_to?(:call) }
      raise error("#{wrong} is called, and #{options[wrong].inspect} cannot be") if wrong
    end

    def parse(signature)
      Native.parse_signature(signature.to_str)
    rescue ArgumentError => e
      raise error(e.message)
    rescue NoMethodError
      raise error("a signature is a text such as \"slug(title VARCHAR) -> VARCHAR\", not #{signature.inspect}")
    end

    # Checks the type of the result.
    def check_result
      raise error("what returns a table is declared with udtf, or db.table") if @returns.start_with?("TABLE(")
    end

    # The available options, with their default values.
    def defaults = DEFAULTS

    def quoted(name) = name.match?(/\A[[:alpha:]_][[:alnum:]_]*\z/) ? name : "\"#{name.gsub('"', '""')}\""

    def set(options)
      unknown = options.keys - defaults.keys
      raise error("there is no option #{unknown.first}; there are #{defaults.keys.join(", ")}") unless unknown.empty?

      options = Declaration::DEFAULTS.merge(defaults, options)
      @nulls = choice(options, :nulls, :skip, :call)
      @on_error = choice(options, :on_error, :fail, :null)
      @deterministic = choice(options, :deterministic, true, false)
      @vectorized = choice(options, :vectorized, true, false)
      @overload = choice(options, :overload, true, false)
      @concurrency = count(options, :concurrency, 1)
      @retries = count(options, :retries, 0)
      @budget = options[:budget] && count(options, :budget, 1)
      @batch = options[:batch] && count(options, :batch, 1)
      @workers = options[:workers] && count(options, :workers, 1)
      @gpus = options[:gpus] && count(options, :gpus, 1)
      @cache = cache(options[:cache])
      @own_sandbox = own_sandbox(options.slice(*SANDBOX).compact)
      @ttl = seconds(options, :ttl)
      @timeout = seconds(options, :timeout)
      @memory_limit = bytes(options, :memory_limit)
      @memoize = bytes(options, :memoize)
      @rate = options[:rate]
      raise error("rate is a text such as '50/s', not #{@rate.inspect}") unless @rate.nil? || @rate.is_a?(String)
      raise error("a function is vectorized or concurrent, not both") if @vectorized && @concurrency > 1
    end

    def choice(options, name, *choices)
      value = options[name]
      value = value.to_sym if value.is_a?(String)
      return value if choices.include?(value)

      raise error("#{name} is #{choices.map(&:inspect).join(" or ")}, not #{options[name].inspect}")
    end

    def count(options, name, least)
      value = options[name]
      return value if value.is_a?(Integer) && value.between?(least, MOST[name])

      raise error("#{name} is a whole number from #{least} to #{MOST[name]}, not #{value.inspect}")
    end

    def seconds(options, name)
      value = options[name]
      return if value.nil?
      return value.to_f if value.is_a?(Numeric) && value.real? && value.positive? && value <= MOST[:timeout]

      raise error("#{name} is a positive number of seconds, at most #{MOST[:timeout]}, not #{value.inspect}")
    end

    # The file of kept results, as the engine is told; the user's cache is "".
    def cache(value)
      return if value.nil? || value == false
      return "" if value == true
      return value if value.is_a?(String) && !value.empty?

      raise error("cache is the path of a file, or true for one in the user's cache, not #{value.inspect}")
    end

    # The sandbox of the function's own workers, as the engine is told.
    def own_sandbox(asked)
      return if asked.empty?

      found = Native.own_sandbox(JSON.generate(asked), file)
      found && JSON.parse(found)
    rescue ArgumentError => e
      raise error(e.message)
    end

    def bytes(options, name)
      value = options[name]
      return nil if value.nil?

      size = value.is_a?(String) ? parsed_bytes(value) : value
      return size.to_i if size.is_a?(Numeric) && size.real? && size >= 1 && size <= MOST[:memory_limit]

      raise error("#{name} is a size such as '500 MB' or '2 GiB', at most 1 PiB, not #{value.inspect}")
    end

    def parsed_bytes(text)
      number, unit = text.match(/\A\s*([0-9.]+)\s*([A-Za-z]*)\s*\z/)&.captures
      factor = UNITS[unit&.upcase]
      Float(number, exception: false)&.*(factor) if factor
    end

    def most_parameters = MOST_PARAMETERS

    # The number of the block's arguments.
    def given = @parameters.size

    # The error for a block with another number of parameters.
    def mismatch(count, fixed) = "the signature has #{count} parameters, the block has #{fixed}"

    # The same error for a block that gets another argument before those of the row.
    def mismatch_behind(what, count, fixed)
      "the block is given #{what} and #{count - 1} #{count == 2 ? "argument" : "arguments"}, and takes #{fixed}"
    end

    def check_parameters
      count = given
      raise error("a function has at most #{most_parameters} parameters, not #{count}") if count > most_parameters

      kinds = callable.parameters.map(&:first)
      raise error("SQL passes no keywords, but the block needs some") if kinds.include?(:keyreq)

      fixed = kinds.count { |kind| %i[req opt].include?(kind) }
      least = kinds.count(:req)
      # A plain block gets nil for missing parameters, without an error. Such a mistake would be
      # found late.
      least = fixed if callable.is_a?(Proc) && !callable.lambda?
      if @variadic && !kinds.include?(:rest)
        raise error("the signature takes any number of arguments (#{signature}), the block does not")
      end

      count -= 1 if @variadic
      return if kinds.include?(:rest) ? count >= least : count.between?(least, fixed)

      raise error(mismatch(count, fixed))
    end
  end

  # The methods with which a file declares functions.
  module DSL
    # Declares a function for SQL: a block, or the method whose `def` follows.
    #
    #   udf "slug(title VARCHAR) -> VARCHAR" do |title|
    #     title.downcase.split.join("-")
    #   end
    #
    #   udf "double(x BIGINT) -> BIGINT"
    #   def double(x) = x * 2
    #
    # A stateful function is a class, or a block with `setup`. Each worker makes one object of the
    # class before its first row, and calls that object for each row. If the object has a method
    # `close`, the worker calls it at its end.
    #
    #   udf "score(x DOUBLE) -> DOUBLE", Model
    #
    #   udf "age(id BIGINT) -> BIGINT", setup: -> { People.open }, teardown: :close.to_proc do |people, id|
    #     people.age(id)
    #   end
    #
    # @param signature [String] name, parameters and result, in SQL's types
    # @param method [Symbol, Class, nil] the name that a `def` returns, for `udf "...", def f(x) =
    #   x`; or a class
    # @param nulls [:skip, :call] `:skip`: a NULL argument gives NULL without a call; `:call`: the
    #   function gets nil
    # @param deterministic [Boolean] equal arguments give equal results, so one call may serve many
    #   rows
    # @param vectorized [Boolean] the block takes and returns whole columns, as Arrays
    # @param concurrency [Integer] the number of rows that each worker calls at once, on threads:
    #   for functions that wait
    # @param timeout [Numeric, nil] the seconds after which a call is ended
    # @param memory_limit [Integer, String, nil] the memory that a call may allocate: bytes, or a
    #   text such as "500 MB"
    # @param memoize [Integer, String, nil] the memory that kept results may take: the engine does not
    #   call the function again with the same arguments
    # @param rate [String, nil] the most rows that may be called in a time, such as "50/s", by all
    #   workers of the engine together
    # @param budget [Integer, nil] the most rows that one query may have called; then the query fails
    # @param batch [Integer, nil] the most rows that a call gets, for functions that get many
    # @param workers [Integer, nil] the most workers that call the function, which are its own: each
    #   holds what the function prepares
    # @param gpus [Integer, nil] the GPUs that each worker of the function sees
    # @param sandbox [:on, :strict, nil] `:on`: workers of its own call the function, in a sandbox that
    #   allows what the next four options list; `:strict`: one in which it opens nothing
    # @param allow_read [String, Array<String>, nil] paths that the function may read
    # @param allow_write [String, Array<String>, nil] paths that it may read and change
    # @param allow_net [Boolean, nil] whether it may connect to other machines
    # @param allow_run [String, Array<String>, nil] paths of programs that it may run
    # @param cache [String, true, nil] a file that keeps results for later programs; true for one in
    #   the user's cache
    # @param ttl [Numeric, nil] the seconds after which kept results hold no more
    # @param on_error [:fail, :null] `:null`: an exception makes the row NULL instead of ending the
    #   query
    # @param retries [Integer] the number of times that a failed call is tried again, with growing
    #   pauses
    # @param overload [Boolean] whether functions of the same name with other parameter types are
    #   kept
    # @param setup [#call, nil] called once on each worker, before its first row; the block gets its
    #   result, and then the row
    # @param teardown [#call, nil] called with the result of `setup` when the worker ends
    # @raise [DeclarationError] if the declaration is invalid
    # @return [Declaration, nil]
    # @raise [DeclarationError] if this cannot work
    # @return [Declaration, nil]
    def udf(signature, method = nil, **options, &block)
      kind = Prepares.declared?(method, options) ? Stateful : Declaration
      Library.current.declare(kind, signature, method, options, block, caller_locations(1, 1).first)
    end
  end
end
