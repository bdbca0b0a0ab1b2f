# frozen_string_literal: true

module Crosslane
  # An aggregate that a file declares with `udaf`, or an aggregate of the program ({HostAggregate}).
  # Its states are objects of a class, or the values that its block returns.
  class Aggregate < Declaration
    DEFAULTS = {
      nulls: :skip, vectorized: false, start: nil, combine: nil, finish: nil, timeout: nil, memory_limit: nil,
      on_error: :fail, retries: 0
    }.freeze
    PARTS = %i[start combine finish].freeze
    METHODS = %i[update merge finish].freeze
    private_constant :PARTS, :METHODS

    # @param signature [String]
    # @param states [Class, Proc] the class of the states, or the block that adds a row to a state
    # @param options [Hash] see {DSL#udaf}
    # @raise [DeclarationError]
    def initialize(signature, states, **options)
      @class = states if states.is_a?(Class)
      super(signature, @class ? method_of(signature, *METHODS) : states, **options)
    end

    def kind = "aggregate"

    # The native part calls the methods from here on.

    # @api private
    # @return [#call, nil] adds a row to a state; nil if the state does this itself
    def step = @class ? nil : callable

    # @api private
    def start = @class ? @class.new : @start&.call

    # @api private
    def merge(state, other)
      return @combine.call(state, other) unless @class

      state.merge(other)
      state
    end

    # @api private
    def finish(state)
      return state.finish if @class

      @finish ? @finish.call(state) : state
    end

    # @api private
    # @return [Object] an equal state that shares no mutable object with this one
    def copy(state) = load(save(state))

    # @api private
    def save(state)
      Marshal.dump(state)
    rescue TypeError => e
      raise TypeError, "a state of #{name} has to be copied, by Marshal, which cannot have it: #{e.message}"
    end

    # @api private
    def load(saved)
      # The bytes come from `save`, here or in another worker of the library.
      Marshal.load(saved) # rubocop:disable Security/MarshalLoad
    end

    private

    def defaults = DEFAULTS

    def set(options)
      super
      if @vectorized && @parameters.empty?
        raise error("a vectorized aggregate needs a parameter: its update is given columns")
      end

      @start, @combine, @finish = options.values_at(*PARTS)
      raise error("a block needs combine: what makes one state of two") unless @class || @combine

      check_parts(options, PARTS)
    end

    def check_parameters
      fixed("an aggregate")
      super
    end

    # The number of the block's arguments: a state, and a row.
    def given = super + (@class ? 0 : 1)

    def mismatch(count, fixed) = @class ? super : mismatch_behind("a state", count, fixed)
  end

  module DSL
    # Declares an aggregate for SQL: a class whose objects accumulate rows, with the methods
    # `update`, `merge` and `finish`.
    #
    #   class Total
    #     def initialize = @sum = 0
    #     def update(x) = @sum += x
    #     def merge(other) = @sum += other.sum
    #     def finish = @sum
    #     attr_reader :sum
    #   end
    #
    #   udaf "total(x BIGINT) -> BIGINT", Total
    #
    # A block gets the accumulated value and a row, and returns the new accumulated value.
    #
    #   udaf "total(x BIGINT) -> BIGINT", start: -> { 0 }, combine: :+.to_proc do |sum, x|
    #     sum + x
    #   end
    #
    # @param signature [String] name, parameters and result, in SQL's types
    # @param states [Class, nil] the class; nil with a block
    # @param vectorized [Boolean] an update gets Arrays: all new rows of a group at once
    # @param start [#call, nil] returns the first accumulated value; nil: that value is nil
    # @param combine [#call, nil] makes one accumulated value of two
    # @param finish [#call, nil] makes the result from the accumulated value, and must not change
    #   that value; nil: the accumulated value is the result
    # @param options [Hash] `nulls`, `timeout`, `memory_limit`, `on_error` and `retries`, as in
    #   {#udf}
    # @raise [DeclarationError] if the declaration is invalid
    # @return [Aggregate]
    def udaf(signature, states = nil, **options, &block)
      Library.current.declare_states(signature, states, options, block, caller_locations(1, 1).first)
    end
  end
end
