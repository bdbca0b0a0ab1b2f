# frozen_string_literal: true

require_relative "../helper"
require_relative "../../../conformance/ruby/saw"

# Runs the language-neutral table of cases through host lanes.
class TestConformance < CrosslaneTest
  TABLE = JSON.parse(File.read(File.expand_path("../../../conformance/cases.json", __dir__)))
  NULLS = { "none" => "false", "all" => "true", "first" => "i = 0", "third" => "i % 3 = 0" }.freeze

  # With one thread, the block runs on the calling thread. With four, it runs on other threads.
  THREADS = [1, 4].freeze

  def self.quoted(text) = "'#{text.gsub("'", "''")}'"

  def fill(db, given, size, pattern, values)
    type = given["type"]
    null = pattern == "last" ? "i = #{size - 1}" : NULLS.fetch(pattern)
    db.query("CREATE OR REPLACE TEMP TABLE picks (n INTEGER, x #{type})")
    sql = given["expressions"] ? values : values.map { |text| self.class.quoted(text) }
    rows = sql.each_with_index.map { |value, n| "(#{n}, CAST(#{value} AS #{type}))" }
    db.query("INSERT INTO picks VALUES #{rows.join(", ")}, (-1, NULL)")
    db.query("CREATE OR REPLACE TEMP TABLE data AS SELECT i, x FROM range(#{size}) r(i) " \
             "JOIN picks ON n = CASE WHEN #{null} THEN -1 ELSE i % #{values.size} END ORDER BY i")
  end

  TABLE["cases"].each_with_index do |given, index|
    type = given["type"]
    difference = TABLE["comparisons"].find { |one| type.match?(one["types"]) }["differ"]
    define_method(:"test_#{index}_#{type[0, 30].gsub(/\W+/, "_")}") do
      db = open
      db.query("SET TimeZone = 'UTC'")
      db.udf(:echo, "(x #{type}) -> #{type}", deterministic: false) { |x| x }
      db.udf(:echo_columns, "(x #{type}) -> #{type}", vectorized: true) { |xs| xs }
      values = given["values"].map { |value| value.is_a?(String) ? value : value["text"] * value["repeat"] }
      values |= given.fetch("beyond", {}).values.flatten
      sizes = given["large"] ? [0, 1] : [0, 1, 2047, 2049]
      sizes.product(TABLE["patterns"]).each do |size, pattern|
        fill(db, given, size, pattern, values)
        THREADS.each do |threads|
          db.query("SET threads = #{threads}")
          %w[echo echo_columns].each do |name|
            differ = db.query("SELECT x, y FROM (SELECT x, #{name}(x) AS y FROM data) WHERE #{difference} LIMIT 3").to_a
            assert_empty differ, "#{name}, #{size} rows, NULLs: #{pattern}, #{threads} threads"
          end
        end
      end
      next if given["large"]

      # The function gets the values of the table, and the client reads the same values.
      db.udf(:saw, "(x #{type}) -> VARCHAR") { |x| saw(x) }
      fill(db, given, given["values"].size, "none", given["values"])
      db.udf(:saw_any, "(x ANY) -> VARCHAR") { |x| saw(x) }
      THREADS.each do |threads|
        db.query("SET threads = #{threads}")
        seen = db.query("SELECT saw(x), saw_any(x) FROM data ORDER BY i").to_a.transpose
        assert_equal [given["sees"]["ruby"]] * 2, seen
      end
      read = db.query("SELECT x FROM data ORDER BY i").map { |(x)| saw(x) }
      assert_equal given["sees"]["ruby"], read
    end
  end
end
