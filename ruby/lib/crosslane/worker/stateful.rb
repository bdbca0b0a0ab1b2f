# frozen_string_literal: true

module Crosslane
  # The state that each worker prepares for a function of a file, before the function's first row:
  # the object of a class, or the value that `setup` returns for a block.
  #
  # @api private
  module Prepares
    PARTS = %i[setup teardown].freeze
    private_constant :PARTS

    class << self
      # Whether a function with this callable and these options is stateful.
      def declared?(callable, options) = callable.is_a?(Class) || PARTS.any? { |part| options[part] }

      # Prepares the stateful functions of a library that have no lanes of their own, or only the one
      # of this number. If some fail, the first exception is raised after all were tried. A later call
      # tries again.
      def set_up(functions, only)
        each(only ? [functions[only]] : functions.reject(&:own_lanes?), &:prepare)
      end

      # Closes the prepared states, the last one first. No caller waits for errors, so they are
      # written to the log.
      def tear_down(functions)
        each(functions.reverse) do |function|
          function.close
        rescue Exception => e # rubocop:disable Lint/RescueException -- it is raised again
          warn("#{function.name}: its tear-down failed: #{Errors.text(e)}")
          raise
        end
      end

      private

      def each(functions)
        failures = functions.grep(self).filter_map do |function|
          yield function
          nil
        rescue Exception => e # rubocop:disable Lint/RescueException -- the others are still called
          e
        end
        raise failures.first if failures.any?
      end
    end

    # @param callable [Class, Proc, Method] the class of the object that is called; or a block that
    #   gets the result of `setup`
    # @param options [Hash] see {DSL#udf}
    # @raise [DeclarationError]
    def initialize(signature, callable, **options)
      @class = callable if callable.is_a?(Class)
      super(signature, @class ? method_of(signature, :call) : callable, **options)
    end

    def message = super.merge(set_up: true)

    def callee(host)
      return super unless direct?

      prepare
      callable
    end

    def leading = direct? ? [@state] : []

    # @return [Object, Proc] the object that is called with a row. It is prepared first, if
    #   necessary.
    def called
      prepare
      return @state if @class

      state = @state
      block = callable
      # A block would split an argument that is a single Array.
      return ->(*row) { block.call([state, *row]) } if @variadic && block.is_a?(Proc) && !block.lambda?

      ->(*row) { block.call(state, *row) }
    end

    # Prepares the function on this worker, unless it is prepared.
    def prepare
      return if @prepared

      @state = @class ? @class.new : @setup&.call
      @prepared = true
    rescue Exception => e # rubocop:disable Lint/RescueException -- it is raised again
      Errors.note(e, "in the set-up of #{name}, before its first row on this lane")
      raise
    end

    # Closes the prepared state.
    def close
      return unless @prepared

      state = @state
      @prepared = @state = nil
      return @teardown&.call(state) unless @class

      state.close if state.respond_to?(:close)
    end

    private

    def defaults = super.merge(setup: nil, teardown: nil)

    # Whether the native part calls the block itself, which is faster.
    def direct? = !@class && !@variadic && calling != "async"

    def set(options)
      super
      @setup, @teardown = options.values_at(*PARTS)
      check_parts(options, PARTS)
    end

    # The number of the block's arguments: the prepared state, and a row.
    def given = super + (@class ? 0 : 1)

    def mismatch(count, fixed) = @class ? super : mismatch_behind("what was set up", count, fixed)
  end
  private_constant :Prepares

  # A stateful function of a file.
  class Stateful < Declaration
    include Prepares
  end
end
