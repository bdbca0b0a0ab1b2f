# frozen_string_literal: true

module Crosslane
  # A table function's scans, by their numbers. Opening one asks for its parts; workers then take one after the other.
  # @api private
  class Scans
    # What the host's lanes see of a table function.
    class Rows
      attr_reader :signature, :file

      def initialize(scans, signature, file)
        @scans = scans
        @signature = signature
        @file = file
      end

      def kind = "table"

      # What opens a scan gives its number, which stands for the arguments and the wanted columns.
      def scan(_partition, _wanted, number) = @scans[number]

      def message = { signature: signature, kind: kind, admits_null: [false], file: file }

      def specification = JSON.generate(message)
    end

    # What opens a scan: its arguments, and two parameters that SQL does not see.
    class Opening < Declaration
      private

      def most_parameters = super + 2
    end

    # The keyword by which a block asks for the names of the columns that a query wants.
    WANTED = :wanted
    # The names of parameters that SQL does not see.
    DECIDED = '"decided columns"'
    PLACES = '"wanted columns"'
    private_constant :Opening, :WANTED, :DECIDED, :PLACES

    # Functions of the host: what opens a scan, its rows, and what decides its columns (nil if the signature does).
    attr_reader :opening, :rows, :deciding

    # @return [Array<String>] the parameters that SQL names, because the block takes them as keywords
    attr_reader :named

    def initialize(name, signature, split, columns, block)
      parameters, fixed = signature.split("->", 2)
      check(signature, fixed, columns)
      @block = block
      @split = split
      @columns = columns
      @scans = {}
      @lock = Mutex.new
      @name = name
      asked = declare(Declaration, "#{parameters} -> VARCHAR", :decide)
      @deciding = asked if columns
      # What was decided, and what a query wants, come behind the arguments.
      more = ["#{DECIDED} VARCHAR", "#{PLACES} BIGINT[]"].last(columns ? 2 : 1).join(", ")
      parameters = "#{parameters.strip.delete_suffix(")")}#{", " if asked.parameters.any?}#{more})"
      @opening = declare(Opening, "#{parameters} -> BIGINT", :open)
      @names = asked.parameters.map(&:first)
      @named = @names & keywords(block).map(&:to_s)
      @asking = asking(block, split)
      check_keywords(block)
      @type = "STRUCT#{fixed.strip}" if fixed
      # The engine does not look at the type of rows that are decided later.
      @rows = Rows.new(self, rows_of(@type || "STRUCT(decided BOOLEAN)"), block.source_location&.first || "")
    end

    # @return [Scan]
    def [](number) = @lock.synchronize { @scans.fetch(number) }

    private

    def check(signature, fixed, columns)
      return if columns ? fixed.nil? : fixed&.strip&.start_with?("(")

      due = columns ? ["parameters if it has columns:", "(n BIGINT)"] : ["columns:", "(n BIGINT) -> (i BIGINT)"]
      raise DeclarationError, "a table function's signature ends with its #{due.first} #{due.last.inspect}, " \
                              "not #{signature.inspect}"
    end

    # Who wants to know what a query wants; nobody if a parameter has the keyword's name.
    def asking(*callables)
      return [] if @names.include?(WANTED.to_s)

      callables.compact.select { |callable| keywords(callable).include?(WANTED) }
    end

    def check_keywords(block)
      known = @named.map(&:to_sym)
      known << WANTED if @asking.include?(block)
      missing = block.parameters.filter_map { |kind, key| key if kind == :keyreq } - known
      raise @opening.error("its block needs the keyword #{missing.first}, which is no parameter") if missing.any?
    end

    def declare(kind, signature, method)
      signature = Crosslane.signature(@name, signature)
      declared = kind.new(signature, ->(*values) { send(method, values) }, nulls: :call, deterministic: false)
      declared.fixed("a table function")
    end

    # The signature of the rows; it is checked here, where its mistake is.
    def rows_of(type)
      rows = Crosslane.signature(@name, "(scan BIGINT) -> TABLE#{type.delete_prefix("STRUCT")}")
      rows.tap { Table.new(rows, ->(scan) { [scan] }) }
    end

    # The keywords that something callable takes.
    def keywords(callable)
      callable = callable.method(:call) unless callable.respond_to?(:parameters)
      callable.parameters.filter_map { |kind, key| key if %i[key keyreq].include?(kind) }
    end

    # What the block is given: parameters that SQL names, and does not give, keep the block's own values.
    def arguments(values)
      named, positional = @names.zip(values).partition { |name, _| @named.include?(name) }
      [positional.map(&:last), named.to_h.compact.transform_keys(&:to_sym)]
    end

    def call(callable, positional, given) = callable.call(*positional, **given.slice(*keywords(callable)))

    def decide(values)
      columns = call(@columns, *arguments(values))
      unless columns.is_a?(String)
        columns = "(#{Array(columns).map { |name, type| Crosslane.signature(name, " #{type}") }.join(", ")})"
      end
      rows_of("STRUCT#{columns}")
      columns
    end

    def open(values)
      wanted = values.pop
      type = @type || "STRUCT#{values.pop}"
      positional, given = arguments(values)
      told = given.merge(asked(type, wanted))
      parts = @split ? call(@split, positional, told).to_a.map { |part| [part, *positional] } : [positional]
      scan = Scan.new(@block, parts, @asking.include?(@block) ? told : given, type, wanted, @asking.any?)
      @lock.synchronize do
        number = Scans.next_number
        SCANS[number] = @scans
        @scans[number] = scan
        number
      end
    end

    # What a block gets that asks for the columns which a query wants.
    def asked(type, wanted)
      return {} if @asking.empty?

      { WANTED => Declaration.columns(type.delete_prefix("STRUCT")).map(&:first).values_at(*wanted).freeze }
    end

    # Which function's scan a number is.
    SCANS = {} # rubocop:disable Style/MutableConstant
    private_constant :SCANS
    @next = 0

    class << self
      # @api private
      def next_number = @next += 1

      # Forgets the scans that are over.
      #
      # @api private
      def forget = Native.forget_scans(SCANS)
    end
  end

  # One scan: its parts, which workers take.
  # @api private
  class Scan
    # @return [String] a STRUCT of its columns
    attr_reader :type

    # @return [Array<Integer>] the places of the columns that the query wants
    attr_reader :wanted

    # @param parts [Array<Array>] what the block is given for each
    # @param given [Hash{Symbol => Object}] keywords, for all of them
    # @param narrow [Boolean] whether the block knows what is wanted, so that its rows may have only that
    def initialize(block, parts, given, type, wanted, narrow)
      @block = block
      @parts = Thread::Queue.new(parts)
      @given = given
      @type = type
      @wanted = wanted
      @narrow = narrow
    end

    def narrow? = @narrow

    # Yields the rows of the parts that this worker gets.
    def each_row(&rows)
      while (part = take)
        @block.call(*part, **@given).each(&rows)
      end
    end

    private

    def take
      @parts.pop(true)
    rescue ThreadError
      nil
    end
  end
end
