# frozen_string_literal: true

module Crosslane
  # A set that does not keep its objects alive. The garbage collector frees an object that nothing
  # else references, and the set then forgets it.
  # @api private
  class WeakSet
    def initialize
      # Each object is its own value. Ruby's `keys` checks only whether the values are alive. With
      # another value it could return objects that the collector is about to free.
      @objects = ObjectSpace::WeakMap.new
    end

    def <<(object)
      @objects[object] = object
      self
    end

    # @return [Array] the objects that are alive; the collector frees none of them meanwhile
    def to_a
      Thread.handle_interrupt(Object => :never) do
        # Disabling the collector also finishes a collection that has begun.
        enabled = !GC.disable
        @objects.keys
      ensure
        GC.enable if enabled
      end
    end
  end
end
