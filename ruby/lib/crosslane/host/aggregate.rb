# frozen_string_literal: true

module Crosslane
  # An aggregate of the program, which {Database#aggregate} declares. Host lanes accumulate rows as
  # workers do for aggregates of files. But a state stays in the program, so it may have objects
  # that Marshal cannot dump.
  #
  # DuckDB may combine one state into several others, and may ask for a state's result more than
  # once (windows). So the lanes work on copies of a state. A copy shares no mutable object with the
  # original.
  # @api private
  class HostAggregate < Aggregate
    # States that go from one lane to another, by number. No number is used twice.
    COPIES = {} # rubocop:disable Style/MutableConstant
    private_constant :COPIES

    class << self
      # Forgets the copies that no lane will ask for.
      def forget = Native.forget_copies(COPIES)

      # @return [Integer] the number of copies
      def size = COPIES.size

      # A copy of all mutable objects of a value. Keys of Hashes and members of Sets are not copied:
      # they are found by their equality, which may be their identity.
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

    # @see Aggregate#finish
    def finish(state) = super(copy(state))

    # @see Aggregate#copy
    def copy(state) = HostAggregate.copy(state)

    # @see Aggregate#save
    def save(state)
      number = Native.copied
      COPIES[number] = copy(state)
      [number].pack("Q")
    end

    # @see Aggregate#load
    def load(saved) = COPIES.delete(saved.unpack1("Q"))
  end
end
