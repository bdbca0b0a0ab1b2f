# frozen_string_literal: true

module Crosslane
  # What an aggregate function has accumulated, by the numbers of DuckDB's states.
  #
  # DuckDB combines a state into as many others as it likes, and asks for a state's result more than once (windows). So
  # what is taken from a state is a copy, down to the last thing that can be changed.
  # @api private
  class Accumulators
    # Functions of the host: a row's step, the union of two states, the result.
    attr_reader :stepping, :combining, :finishing

    # By number, for all aggregates of the process.
    VALUES = {} # rubocop:disable Style/MutableConstant
    private_constant :VALUES

    # States before this one are nobody's.
    @floor = 0

    class << self
      # Forgets what ended.
      def forget
        floor = Native.forget_states(VALUES)
        return unless floor

        @floor = floor
        # Other threads may add states meanwhile, which no iteration allows.
        VALUES.keys.each { |state| VALUES.delete(state) if state < floor } # rubocop:disable Style/HashEachMethods
      end

      # Keeps what a state has accumulated, unless a lane is late.
      def keep(state, value)
        VALUES[state] = value unless state < @floor
      end

      # @return [Integer] states of which something is known
      def size = VALUES.size

      # What can be changed without the original's knowing. Keys of Hashes and members of Sets stay what they are: they
      # are found by what they are, which may be their identity.
      def copy(value, seen = {}.compare_by_identity)
        return value if Ractor.shareable?(value)

        seen.fetch(value) do
          case value
          when Array then (seen[value] = value.dup).map! { |item| copy(item, seen) }
          when Hash then copy_hash(value, seen)
          when Struct then value.each_pair.with_object(seen[value] = value.dup) { |(k, v), s| s[k] = copy(v, seen) }
          when Set then seen[value] = value.dup
          when Proc, Method, Module, IO, Thread, Enumerator then value
          else seen[value] = copy_object(value, seen)
          end
        end
      end

      private

      def copy_hash(hash, seen)
        seen[hash] = twin = hash.dup.clear
        hash.each { |key, value| twin[key] = copy(value, seen) }
        twin
      end

      def copy_object(object, seen)
        Marshal.load(Marshal.dump(object))
      rescue TypeError
        twin = object.dup
        object.instance_variables.each do |name|
          twin.instance_variable_set(name, copy(object.instance_variable_get(name), seen))
        end
        twin
      end
    end

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
    def check(signature, step) = Declaration.new(signature, step).fixed("an aggregate")

    def advance(state, *row)
      self.class.keep(state, @step.call(VALUES.fetch(state) { begin_state }, *row))
      true
    end

    # The first value of a state; others may have ended.
    def begin_state
      self.class.forget
      @start&.call
    end

    def unite(target, source)
      return true unless VALUES.key?(source)

      value = self.class.copy(VALUES[source])
      self.class.keep(target, VALUES.key?(target) ? @combine.call(VALUES[target], value) : value)
      true
    end

    def result(state)
      value = VALUES.fetch(state) { @start&.call }
      @finish ? @finish.call(self.class.copy(value)) : value
    end
  end
end
