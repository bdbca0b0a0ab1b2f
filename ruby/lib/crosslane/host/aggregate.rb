# frozen_string_literal: true

module Crosslane
  # An aggregate of the program: what {Database#aggregate} declares. Host lanes accumulate as workers do for those of
  # files, but a state stays in the program: it may be of what Marshal cannot have.
  #
  # DuckDB combines a state into as many others as it likes, and asks for a state's result more than once (windows). So
  # what is taken from a state is a copy, down to the last thing that can be changed.
  # @api private
  class HostAggregate < Aggregate
    # What goes from one lane to another, by numbers of which none is used again.
    COPIES = {} # rubocop:disable Style/MutableConstant
    private_constant :COPIES

    class << self
      # Forgets what no lane will ask for any more.
      def forget = Native.forget_copies(COPIES)

      # @return [Integer] how many copies there are
      def size = COPIES.size

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
