# frozen_string_literal: true

module Crosslane
  # A table function of the program: what {Database#table} declares. Host lanes scan it as workers scan the tables of
  # files, but its partitions are objects that stay in the program, and its columns may depend on the arguments.
  #
  # So it has more parameters than SQL knows of: the columns that were decided, and the number of the query.
  # @api private
  class HostTable
    DECIDED = '"decided columns" VARCHAR'
    QUERY = '"query" BIGINT'
    # What stands for columns that are decided when a statement is planned.
    OPEN = "TABLE(decided BOOLEAN)"
    # The partitions of queries that run, by the queries' numbers.
    PARTITIONS = {} # rubocop:disable Style/MutableConstant
    private_constant :DECIDED, :QUERY, :OPEN, :PARTITIONS

    # Forgets the partitions of queries that are over.
    def self.forget = Native.forget_partitions(PARTITIONS)

    # @return [Declaration, nil] what decides the columns, if the signature leaves them open
    attr_reader :deciding

    # @param name [Symbol, String]
    # @param signature [String]
    # @param block [Proc]
    # @param columns [#call, nil]
    # @param options [Hash] see {DSL#udtf}
    # @yieldparam whole [String] the signature as a function's
    # @yieldreturn [String] the same with the types that its names stand for
    # @raise [DeclarationError]
    def initialize(name, signature, block, columns, options)
      parameters, fixed = parts_of(signature, columns)
      whole = yield("#{parameters} -> #{fixed || OPEN}")
      @table = Table.new(Crosslane.signature(name, whole), block, **options)
      if @table.parameters.any? { |_, type| type.start_with?("TABLE") }
        raise @table.error("a table of the program takes no TABLE; stream functions come from files")
      end
      return unless columns

      @columns = columns
      decided = Crosslane.signature(name, "#{whole.delete_suffix(" -> #{OPEN}")} -> VARCHAR")
      @deciding = Declaration.new(decided, ->(*values) { decide(values) }, nulls: :call, deterministic: false)
    end

    def kind = @table.kind

    def file = @table.file

    def message
      hidden = [(DECIDED if @columns), QUERY].compact
      known = @table.message
      parameters, rows = known[:signature].split(/\) -> (?=TABLE\()/, 2)
      comma = ", " if @table.parameters.any?
      known.merge(
        signature: "#{parameters}#{comma}#{hidden.join(", ")}) -> #{rows}",
        admits_null: known[:admits_null] + hidden.map { true }, hidden: hidden.size
      )
    end

    def specification = JSON.generate(message)

    # @see Table#scan
    def scan(partition, wanted, *values)
      table, query = use(values)
      part = PARTITIONS.fetch(query).fetch(partition.unpack1("Q")) if partition
      table.rows([part].first(partition ? 1 : 0), wanted, values)
    end

    # @see Table#parts
    def parts(*values)
      table, query = use(values)
      table.in_bytes do |take|
        held = PARTITIONS[query] = []
        table.partitions(values).each do |part|
          held << part
          take.call([held.size - 1].pack("Q"))
        end
      end
    end

    private

    # The table of one use, and the query's number. Leaves SQL's arguments.
    def use(values)
      query = values.pop
      [@columns ? @table.with_columns(values.pop) : @table, query]
    end

    def parts_of(signature, columns)
      parameters, fixed = signature.to_s.split("->", 2)
      fixed = fixed&.strip
      # TABLE may be left out, since nothing else is meant.
      fixed = "TABLE#{fixed}" if fixed&.start_with?("(")
      return [parameters, fixed] if columns ? fixed.nil? : fixed&.start_with?("TABLE(")

      due = columns ? ["parameters if it has columns:", "(n BIGINT)"] : ["columns:", "(n BIGINT) -> TABLE(i BIGINT)"]
      raise DeclarationError, "a table function's signature ends with its #{due.first} #{due.last.inspect}, " \
                              "not #{signature.inspect}"
    end

    # The columns of one use, as a signature has them.
    def decide(values)
      columns = @table.ask(@columns, values)
      given = columns
      unless columns.is_a?(String)
        columns = "(#{Array(columns).map { |name, type| Crosslane.signature(name, " #{type}") }.join(", ")})"
      end
      check(columns, given)
      columns
    end

    # What is wrong with columns is told before a query uses them.
    def check(columns, given)
      Native.parse_signature(Crosslane.signature(@table.name, "() -> TABLE#{columns}"))
    rescue ArgumentError => e
      raise @table.error("its columns are #{given.inspect}: #{e.message}")
    end
  end
end
