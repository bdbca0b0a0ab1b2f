# frozen_string_literal: true

require_relative "../helper"
require "open3"
require "rbconfig"

# The collector moves objects while lanes and V8's thread work and wait without Ruby's lock.
class TestCompaction < CrosslaneTest
  PROGRAM = <<~RUBY
    require "crosslane"
    require "crosslane/v8"
    db = Crosslane.open(config: { threads: 4 })
    db.udf(:inc, "(x BIGINT) -> BIGINT") { |x| x + 1 }
    db.udf(:text, "(x BIGINT) -> VARCHAR") { |x| "number \#{x}" }
    db.aggregate(:longest, "(x VARCHAR) -> VARCHAR", combine: ->(a, b) { [a, b].max }) { |a, x| [a || x, x].max }
    context = Crosslane::V8::Context.new
    context.attach("double") { |n| n * 2 }
    work = [-> { db.value("SELECT sum(inc(i))::BIGINT FROM range(300000) r(i)") == 45_000_150_000 },
            -> { db.value("SELECT longest(text(i)) FROM range(5000) r(i)") == "number 999" },
            -> { context.eval("var sum = 0; for (var i = 0; i < 1000; i++) sum += double(i); sum") == 999_000 }]
    # A part of a struct moves those after it when it is asked for its own parts, the second time.
    calls = 0
    moving = Class.new(Struct.new(:a)) { define_method(:to_h) { ((calls += 1).odd? || GC.compact) && super() } }
    20.times do |n|
      junk = Array.new(10_000) { |i| +"junk \#{i}" }
      texts = (0...20).to_h { |i| [:"f\#{i}", "value \#{i} of \#{n} \#{"x" * i}"] }
      given = { first: moving.new(n), **texts }
      junk = nil
      db.query("SELECT ?", given).first.first.to_h.drop(1) == texts.to_a || abort("wrong parts")
    end
    GC.auto_compact = true
    compactor = Thread.new { 100.times { GC.compact && Array.new(1000) { "x" * 50 } } }
    work.each { |call| call.call || abort("wrong") } while compactor.alive?
    GC.stress = true
    context.call("double", 21) == 42 && db.value("SELECT longest(text(i)) FROM range(3) r(i)") == "number 2" || abort
    GC.stress = false
    puts "right"
  RUBY

  def test_objects_move_while_lanes_work
    load_path = $LOAD_PATH.flat_map { |folder| ["-I", folder] }
    4.times do
      output, status = Open3.capture2e(RbConfig.ruby, *load_path, "-e", PROGRAM)
      assert_predicate status, :success?, output[0, 2000]
      assert_equal "right\n", output
    end
  end
end
