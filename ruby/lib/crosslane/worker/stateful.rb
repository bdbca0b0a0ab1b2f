# frozen_string_literal: true

module Crosslane
  # What each worker prepares for a function of a file, before its first row: the object of a class that is called, or
  # what a block is given.
  #
  # @api private
  module Prepares
    PARTS = %i[setup teardown].freeze
    private_constant :PARTS

    class << self
      # Whether a function is stateful that is declared so.
      def declared?(callable, options) = callable.is_a?(Class) || PARTS.any? { |part| options[part] }

      # Prepares all functions of a library that need it. The first exception is raised when all are prepared; a call
      # tries it again.
      def set_up(functions) = each(functions, &:prepare)

      # Ends what was prepared, the last first. Nobody waits for what is raised: it is told in the log.
      def tear_down(functions)
        each(functions.reverse) do |function|
          function.close
        rescue Exception => e # rubocop:disable Lint/RescueException -- it goes on
          warn("#{function.name}: its tear-down failed: #{Errors.text(e)}")
          raise
        end
      end

      private

      def each(functions)
        failures = functions.grep(self).filter_map do |function|
          yield function
          nil
        rescue Exception => e # rubocop:disable Lint/RescueException -- whatever it is, the others have their turn
          e
        end
        raise failures.first if failures.any?
      end
    end

    # @param signature [String]
    # @param callable [Class, Proc, Method] the class of what is called, or what is called with what `setup` returned
    # @param options [Hash] see {DSL#udf}
    # @raise [DeclarationError]
    def initialize(signature, callable, **options)
      @class = callable if callable.is_a?(Class)
      super(signature, @class ? method_of(signature) : callable, **options)
    end

    def message = super.merge(set_up: true)

    def callee(host)
      return super unless direct?

      prepare
      callable
    end

    def leading = direct? ? [@state] : []

    # @return [Object, Proc] what is called with a row. It is prepared if it is not yet.
    def called
      prepare
      return @state if @class

      state = @state
      block = callable
      # A block would take a single Array apart.
      return ->(*row) { block.call([state, *row]) } if @variadic && block.is_a?(Proc) && !block.lambda?

      ->(*row) { block.call(state, *row) }
    end

    # Prepares the function on this worker, if it is not yet.
    def prepare
      return if @prepared

      @state = @class ? @class.new : @setup&.call
      @prepared = true
    rescue Exception => e # rubocop:disable Lint/RescueException -- it goes on
      Errors.note(e, "in the set-up of #{name}, before its first row on this lane")
      raise
    end

    # Ends what was prepared.
    def close
      return unless @prepared

      state = @state
      @prepared = @state = nil
      return @teardown&.call(state) unless @class

      state.close if state.respond_to?(:close)
    end

    private

    def defaults = super.merge(setup: nil, teardown: nil)

    # Whether the block itself is called by the native half, which is quicker.
    def direct? = !@class && !@variadic && calling != "async"

    def source = @class ? source_of(@class) : super

    # The method that is called with a row.
    def method_of(signature)
      @file, @line = source
      @name = signature.to_s[/\A\s*\w+/].to_s.strip
      raise error("#{@class} has no method call") unless @class.method_defined?(:call)
      raise error("#{@class}.new needs arguments") unless [0, -1].include?(@class.instance_method(:initialize).arity)

      @class.instance_method(:call)
    end

    def set(options)
      super
      @setup, @teardown = options.values_at(*PARTS)
      given = PARTS.select { |part| options[part] }
      raise error("#{given.first} is for a block; #{@class} has methods") if @class && given.any?

      wrong = given.find { |part| !options[part].respond_to?(:call) }
      raise error("#{wrong} is called, and #{options[wrong].inspect} cannot be") if wrong
    end

    # What a block is given: what was prepared, and a row.
    def given = super + (@class ? 0 : 1)

    def mismatch(count, fixed) = @class ? super : mismatch_behind("what was set up", count, fixed)
  end
  private_constant :Prepares

  # A stateful function of a file.
  class Stateful < Declaration
    include Prepares
  end
end
