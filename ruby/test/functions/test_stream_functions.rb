# frozen_string_literal: true

require_relative "../helper"
require "tmpdir"

# Functions declared with `udtf` whose only parameter is a table.
class TestStreamFunctions < CrosslaneTest
  Flight = Struct.new(:id, :delay)
  FLIGHTS = [Flight.new(1, 70), Flight.new(2, nil), Flight.new(3, 5)].freeze
  SIGNATURE = "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, delay INTEGER)"

  # The functions that a file declares.
  def declared(text)
    Dir.mktmpdir do |folder|
      path = File.join(folder, "functions.rb")
      File.write(path, text)
      Crosslane::Library.read(path).first
    end
  end

  # The rows that a function makes of a batch, called as the native part calls it.
  def made(options, block, batch = FLIGHTS)
    function, = declared("udtf \"#{SIGNATURE}\", #{options} do |flights|\n#{block}\nend")
    rows = []
    function.map(batch).each_row { |row| rows << row }
    rows
  end

  def test_a_stream_function_may_be_stateful
    functions = declared(<<~RUBY)
      class Late
        def initialize = @limit = 60
        def call(flights) = flights.select { |flight| flight.delay.to_i > @limit }
      end
      udtf "#{SIGNATURE}", Late
      $ended = []
      udtf "#{SIGNATURE.sub("late", "both")}", setup: -> { [5] }, teardown: ->(x) { $ended << x } do |all, flights|
        flights.select { |flight| flight.delay.to_i >= all.first }
      end
      udtf "#{SIGNATURE.sub("late", "bad")}", setup: -> { raise "no model" } do |_, flights|
        flights
      end
    RUBY
    late, both, bad = functions
    assert_equal [true] * 3, (functions.map { |function| function.message[:set_up] })
    rows = ->(function) { [].tap { |all| function.map(FLIGHTS).each_row { |row| all << row } } }
    assert_equal [[70], [70, 5]], ([late, both].map { |function| rows.call(function).map { |row| row.to_a.last } })
    error = assert_raises(RuntimeError) { rows.call(bad) }
    assert_match(/in the set-up of bad, before its first row/, Crosslane::Errors.describe(error).last)
    both.close
    assert_equal [[5]], $ended # rubocop:disable Style/GlobalVars
    assert_raises(Crosslane::DeclarationError) { declared("udtf '#{SIGNATURE}', setup: -> {} do |all| all end") }
  end

  def test_what_the_engine_is_told
    function, table = declared(<<~RUBY)
      udtf "#{SIGNATURE}", retries: 2, vectorized: true
      def late(flights) = flights
      udtf("t(x BIGINT) -> TABLE(y BIGINT)") { |x| [x] }
    RUBY
    assert_instance_of Crosslane::Stream, function
    assert_equal "late", function.name
    assert_equal %w[id delay], function.columns
    message = { signature: SIGNATURE, kind: "stream", admits_null: [true], calling: "vectorized", retries: 2 }
    assert_equal message, function.message.slice(*message.keys)
    assert_equal function.message, JSON.parse(function.specification, symbolize_names: true)
    assert_instance_of Crosslane::Table, table
  end

  def test_rows
    assert_equal [FLIGHTS[0]], made("retries: 1", "flights.select { |flight| flight.delay.to_i > 60 }")
    assert_equal [[1], [2], [3]], made("retries: 1", "flights.lazy.map { |flight| [flight[:id]] }")
    assert_equal [], made("retries: 1", "nil")
    error = assert_raises(TypeError) { made("retries: 1", "flights.size") }
    assert_equal "the block returned Integer, which has no each", error.message
  end

  def test_columns
    columns = { id: [1, 2, 3], delay: [70, nil, 5] }
    [
      "{ delay: flights[:delay], id: flights[:id] }",
      "[[flights[:id], flights[:delay]]]",
      "[{ 'id' => 1..3, delay: flights[:delay] }]",
      "Struct.new(:delay, :id).new(flights[:delay], flights[:id])"
    ].each { |block| assert_equal [[3, [[1, 2, 3], [70, nil, 5]]]], made("vectorized: true", block, columns), block }
    assert_equal [], made("vectorized: true", "nil", columns)
    # An exception counts as a row.
    errors = made("vectorized: true", "[RuntimeError.new('0'), RuntimeError.new('1')]", columns)
    assert_equal %w[0 1], errors.map(&:message)
    parts = made("vectorized: true", "{ id: 0...5000, delay: 0...5000 }", columns)
    assert_equal [2048, 2048, 904], parts.map(&:first)
  end

  def test_what_cannot_be_declared
    body = "{ |flights| flights }"
    {
      "udtf('#{SIGNATURE}', partitions: -> { [1] }) #{body}" => /there is no option partitions/,
      "udtf('#{SIGNATURE}', cardinality: 5) #{body}" => /there is no option cardinality/,
      "udtf('#{SIGNATURE}', nulls: :call) #{body}" => /there is no option nulls/,
      "udtf('#{SIGNATURE}') { |flights, more| flights }" => /the signature has 1 parameters, the block has 2/,
      "udtf('#{SIGNATURE}') { |flights, wanted: nil| flights }" => /called without keywords, and its block has wanted/,
      "udtf('#{SIGNATURE}') { |flights, wanted:| flights }" => /SQL passes no keywords/,
      "udtf('f(t TABLE) -> TABLE(a BIGINT)') #{body}" => /the columns of both tables are declared/,
      "udtf('f(t TABLE(a BIGINT)) -> TABLE') #{body}" => /the columns of both tables are declared/,
      "udtf('f(t TABLE(a BIGINT), x BIGINT) -> TABLE(a BIGINT)') #{body}" => /no parameter beside a TABLE/,
      "udf('#{SIGNATURE}') #{body}" => /what returns a table is declared with udtf/,
      "udaf('f(t TABLE(a BIGINT)) -> BIGINT') { |sum, t| sum }" => /TABLE/
    }.each do |text, message|
      error = assert_raises(Crosslane::DeclarationError, text) { declared(text) }
      assert_match message, error.message, text
    end
    error = assert_raises(Crosslane::DeclarationError) { open.table(:t, "(t TABLE(a BIGINT)) -> (a BIGINT)") { |t| t } }
    assert_match(/function t: a table of the program takes no TABLE/, error.message)
  end
end
