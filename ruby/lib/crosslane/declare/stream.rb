# frozen_string_literal: true

module Crosslane
  # A stream function of a file: it is declared with `udtf`, and its only parameter is a table.
  class Stream < Declaration
    include GivesRows

    DEFAULTS = {
      deterministic: true, vectorized: false, timeout: nil, memory_limit: nil, on_error: :fail, retries: 0
    }.freeze

    # @api private
    # @return [Boolean] whether the signature is that of a stream function; false for an invalid
    #   signature
    def self.takes?(signature)
      _, parameters, = Native.parse_signature(signature.to_str)
      parameters.any? { |_, type| type.start_with?("TABLE") }
    rescue ArgumentError, NoMethodError
      false
    end

    def kind = "stream"

    def admits_null = [true]

    # Yields the result rows of a batch. The native part calls this.
    #
    # @api private
    # @param batch [Array<Struct>, Hash{Symbol => Array}] rows, or columns by their names
    def map(batch)
      wanted = [*0...columns.size]
      Rows.new("STRUCT#{@fields}", wanted, false) do |take|
        result = called.call(batch)
        # A batch may itself have an `each`, which yields its parts.
        result = [result] if @vectorized && (result.is_a?(Hash) || result.is_a?(Struct))
        give(listed(result, "the block"), wanted, false, take) unless result.nil?
      end
    end

    private

    def defaults = DEFAULTS

    def check_result
      if [@parameters.first.last, @returns].include?("TABLE")
        raise error("the columns of both tables are declared: " \
                    "(rows TABLE(column TYPE, ...)) -> TABLE(column TYPE, ...)")
      end

      super
    end

    def check_parameters
      super
      keyword = callable.parameters.find { |kind, _| kind == :key }
      raise error("a stream function is called without keywords, and its block has #{keyword.last}") if keyword
    end
  end

  # A stateful stream function of a file.
  class StatefulStream < Stream
    include Prepares
  end
end
