# frozen_string_literal: true

module Crosslane
  # Objects that nothing else need hold: each is forgotten when the collector takes it.
  # @api private
  class WeakSet
    def initialize
      # Each object is its own value: Ruby's `keys` looks at whether the values live, and would else give back objects
      # that the collector is about to free.
      @objects = ObjectSpace::WeakMap.new
    end

    def <<(object)
      @objects[object] = object
      self
    end

    # @return [Array] those that live; all others are freed already, and none is about to be
    def to_a
      Thread.handle_interrupt(Object => :never) do
        # This ends what the collector has begun.
        enabled = !GC.disable
        @objects.keys
      ensure
        GC.enable if enabled
      end
    end
  end
end
