# frozen_string_literal: true

module Crosslane
  # An aggregate function of the host, and what it has accumulated, by the numbers of DuckDB's states.
  #
  # DuckDB combines a state into as many others as it likes, and asks for a state's result more than once (windows). So
  # what is taken from a state is a copy, down to the last thing that can be changed.
  # @api private
  class Accumulators < Declaration
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
      unless signature.include?("->")
        raise DeclarationError, "an aggregate's signature is \"(x BIGINT) -> BIGINT\", not #{signature}"
      end

      unknown = options.keys - [:nulls]
      raise DeclarationError, "an aggregate has no option #{unknown.first}; there is nulls" unless unknown.empty?

      @start = start
      @step = step
      @combine = combine
      @finish = finish
      super(Crosslane.signature(name, signature), step, **options, deterministic: false)
      fixed("an aggregate")
    end

    def kind = "aggregate"

    # Adds a row to a state.
    def update(state, *row)
      self.class.keep(state, @step.call(VALUES.fetch(state) { begin_state }, *row))
    end

    # Adds what a state has accumulated to another, and keeps it.
    def combine(target, source, _keep)
      return unless VALUES.key?(source)

      value = self.class.copy(VALUES[source])
      self.class.keep(target, VALUES.key?(target) ? @combine.call(VALUES[target], value) : value)
    end

    # @return the result of a state
    def finish(state)
      value = VALUES.fetch(state) { @start&.call }
      @finish ? @finish.call(self.class.copy(value)) : value
    end

    private

    # The first value of a state; others may have ended.
    def begin_state
      self.class.forget
      @start&.call
    end

    # What was accumulated, and a row.
    def given = super + 1
  end
end
