# frozen_string_literal: true

module Crosslane
  # What an aggregate function has accumulated, by the numbers of DuckDB's states.
  # @api private
  class Accumulators
    # Functions of the host: a row's step, the union of two states, the result.
    attr_reader :stepping, :combining, :finishing

    # By number, for all aggregates of the process.
    VALUES = {} # rubocop:disable Style/MutableConstant
    private_constant :VALUES

    def initialize(name, signature, start, step, combine, finish, options)
      @start = start
      @step = step
      @combine = combine
      @finish = finish
      nulls = options.fetch(:nulls, :skip)
      of = ->(text) { Crosslane.signature(name, text) }
      # A state's number is never NULL.
      parameters, returns = signature.split("->", 2)
      raise DeclarationError, "an aggregate's signature is \"(x BIGINT) -> BIGINT\", not #{signature}" unless returns

      rest = parameters.strip.delete_prefix("(").delete_suffix(")").strip
      stepping = of.call("(state BIGINT#{", " unless rest.empty?}#{rest}) -> BOOLEAN")
      check(stepping, step)
      @stepping = Declaration.new(stepping, ->(*row) { advance(*row) }, nulls: nulls, deterministic: false)
      @combining = Declaration.new(of.call("(target BIGINT, source BIGINT) -> BOOLEAN"),
                                   ->(target, source) { unite(target, source) }, deterministic: false)
      @finishing = Declaration.new(of.call("(state BIGINT) -> #{returns}"),
                                   ->(state) { result(state) }, deterministic: false)
    end

    private

    # The block takes what the step function does.
    def check(signature, step) = Declaration.new(signature, step)

    def advance(state, *row)
      Native.ended_states.each { |ended| VALUES.delete(ended) }
      VALUES[state] = @step.call(VALUES.fetch(state) { @start&.call }, *row)
      true
    end

    def unite(target, source)
      return true unless VALUES.key?(source)

      value = VALUES.delete(source)
      VALUES[target] = VALUES.key?(target) ? @combine.call(VALUES[target], value) : value
      true
    end

    def result(state)
      value = VALUES.delete(state) { @start&.call }
      @finish ? @finish.call(value) : value
    end
  end
end
