# frozen_string_literal: true

module Crosslane
  # A table function of the program, which {Database#table} declares. Host lanes scan it as workers
  # scan the tables of files. But its partitions are objects that stay in the program, and its
  # columns may depend on the arguments.
  #
  # So it has more parameters than SQL shows: the decided columns, and the number of the query.
  # @api private
  class HostTable
    DECIDED = '"decided columns" VARCHAR'
    QUERY = '"query" BIGINT'
    # The columns in the signature while they are not decided. They are decided when a statement is
    # planned.
    OPEN = "TABLE(decided BOOLEAN)"
    # The partitions of running queries, by the queries' numbers.
    PARTITIONS = {} # rubocop:disable Style/MutableConstant
    private_constant :DECIDED, :QUERY, :OPEN, :PARTITIONS

    # Forgets the partitions of queries that have ended.
    def self.forget = Native.forget_partitions(PARTITIONS)

    # @return [Declaration, nil] decides the columns; nil if the signature has them
    attr_reader :deciding

    # @param name [Symbol, String]
    # @param signature [String]
    # @param block [Proc]
    # @param columns [#call, nil]
    # @param options [Hash] see {DSL#udtf}
    # @yieldparam whole [String] the complete signature, without the function's name
    # @yieldreturn [String] the same signature, with names of the database's own types replaced by
    #   their definitions
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

    # The table for one scan, and the query's number. Afterwards `values` has only SQL's arguments.
    def use(values)
      query = values.pop
      [@columns ? @table.with_columns(values.pop) : @table, query]
    end

    def parts_of(signature, columns)
      parameters, fixed = signature.to_s.split("->", 2)
      fixed = fixed&.strip
      # The word TABLE is optional.
      fixed = "TABLE#{fixed}" if fixed&.start_with?("(")
      return [parameters, fixed] if columns ? fixed.nil? : fixed&.start_with?("TABLE(")

      due = columns ? ["parameters if it has columns:", "(n BIGINT)"] : ["columns:", "(n BIGINT) -> TABLE(i BIGINT)"]
      raise DeclarationError, "a table function's signature ends with its #{due.first} #{due.last.inspect}, " \
                              "not #{signature.inspect}"
    end

    # The columns for one query, in a signature's syntax.
    def decide(values)
      columns = @table.ask(@columns, values)
      given = columns
      unless columns.is_a?(String)
        columns = "(#{Array(columns).map { |name, type| Crosslane.signature(name, " #{type}") }.join(", ")})"
      end
      check(columns, given)
      columns
    end

    # Checks the columns. So an error is raised before a query uses them.
    def check(columns, given)
      Native.parse_signature(Crosslane.signature(@table.name, "() -> TABLE#{columns}"))
    rescue ArgumentError => e
      raise @table.error("its columns are #{given.inspect}: #{e.message}")
    end
  end
end
