# frozen_string_literal: true

require_relative "../helper"

class TestWeakSet < CrosslaneTest
  class Thing
    def alive? = true
  end

  def test_the_set_has_the_living_objects
    set = Crosslane::WeakSet.new
    things = Array.new(3) { Thing.new.tap { |thing| set << thing } }
    assert_equal things.map(&:object_id).sort, set.to_a.map(&:object_id).sort
  end

  # Between two phases of the collector, some dead objects are not freed yet.
  alone def test_what_the_collector_is_about_to_free_is_not_in_it
    set = Crosslane::WeakSet.new
    100_000.times { set << Thing.new }
    GC.start(full_mark: true, immediate_sweep: false)
    things = set.to_a
    GC.start
    assert things.all?(&:alive?)
  end
end
