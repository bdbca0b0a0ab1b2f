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

      def scan(number) = @scans[number]

      def message = { signature: signature, admits_null: [false], file: file }
    end

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
      if columns
        @deciding = declare("#{parameters} -> VARCHAR", :decide)
        # What was decided comes behind the arguments.
        parameters = "#{parameters.strip.delete_suffix(")")}#{", " if @deciding.parameters.any?}columns VARCHAR)"
      end
      @opening = declare("#{parameters} -> BIGINT", :open)
      @names = (@deciding || @opening).parameters.map(&:first)
      @named = @names & keywords(block).map(&:to_s)
      missing = block.parameters.filter_map { |kind, key| key if kind == :keyreq } - @named.map(&:to_sym)
      raise @opening.error("its block needs the keyword #{missing.first}, which is no parameter") if missing.any?

      @type = "STRUCT#{fixed.strip}" if fixed
      # The engine does not look at the type of rows that are decided later.
      @rows = Rows.new(self, rows_of(@type || "BOOLEAN"), block.source_location&.first || "")
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

    def declare(signature, method)
      signature = Crosslane.signature(@name, signature)
      opening = Declaration.new(signature, ->(*values) { send(method, values) }, nulls: :call, deterministic: false)
      opening.fixed("a table function")
    end

    # The signature of the rows; it is checked here, where its mistake is.
    def rows_of(type)
      Crosslane.signature(@name, "(scan BIGINT) -> #{type}").tap { |rows| Declaration.new(rows, ->(scan) {}) }
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
      type = @type || "STRUCT#{values.pop}"
      positional, given = arguments(values)
      parts = @split ? call(@split, positional, given).to_a.map { |part| [part, *positional] } : [positional]
      scan = Scan.new(@block, parts, given, type)
      @lock.synchronize do
        number = Scans.next_number
        SCANS[number] = @scans
        @scans[number] = scan
        number
      end
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
      def forget = Native.ended_scans&.each { |number| SCANS.delete(number)&.delete(number) }
    end
  end

  # One scan: its parts, which workers take.
  # @api private
  class Scan
    # @return [String] a STRUCT of its columns
    attr_reader :type

    # @param parts [Array<Array>] what the block is given for each
    # @param given [Hash{Symbol => Object}] keywords, for all of them
    def initialize(block, parts, given, type)
      @block = block
      @parts = Thread::Queue.new(parts)
      @given = given
      @type = type
    end

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
