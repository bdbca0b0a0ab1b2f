# frozen_string_literal: true

require_relative "helper"

# The language-neutral table of cases, through host lanes.
class TestConformance < CrosslaneTest
  TABLE = JSON.parse(File.read(File.expand_path("../../conformance/cases.json", __dir__)))
  NULLS = { "none" => "false", "all" => "true", "first" => "i = 0", "third" => "i % 3 = 0" }.freeze

  def self.quoted(text) = "'#{text.gsub("'", "''")}'"

  def fill(db, type, size, pattern, values)
    null = pattern == "last" ? "i = #{size - 1}" : NULLS.fetch(pattern)
    db.query("CREATE OR REPLACE TEMP TABLE picks (n INTEGER, x #{type})")
    rows = values.each_with_index.map { |text, n| "(#{n}, CAST(#{self.class.quoted(text)} AS #{type}))" }
    db.query("INSERT INTO picks VALUES #{rows.join(", ")}, (-1, NULL)")
    db.query("CREATE OR REPLACE TEMP TABLE data AS SELECT i, x FROM range(#{size}) r(i) " \
             "JOIN picks ON n = CASE WHEN #{null} THEN -1 ELSE i % #{values.size} END ORDER BY i")
  end

  TABLE["cases"].each_with_index do |given, index|
    type = given["type"]
    define_method(:"test_#{index}_#{type[0, 30].gsub(/\W+/, "_")}") do
      [1, 4].each do |threads|
        db = open(threads: threads)
        db.query("SET TimeZone = 'UTC'")
        db.udf(:echo, "(x #{type}) -> #{type}", deterministic: false) { |x| x }
        db.udf(:echo_columns, "(x #{type}) -> #{type}", vectorized: true) { |xs| xs }
        values = given["values"].map { |value| value.is_a?(String) ? value : value["text"] * value["repeat"] }
        values |= given.fetch("beyond", {}).values.flatten
        sizes = given["large"] ? [0, 1] : [0, 1, 2047, 2049]
        sizes.product(TABLE["patterns"]).each do |size, pattern|
          fill(db, type, size, pattern, values)
          %w[echo echo_columns].each do |name|
            differ = db.query("SELECT x, y FROM (SELECT x, #{name}(x) AS y FROM data) WHERE x::VARCHAR IS DISTINCT " \
                              "FROM y::VARCHAR OR (x IS NULL) <> (y IS NULL) LIMIT 3").to_a
            assert_empty differ, "#{name}, #{size} rows, NULLs: #{pattern}"
          end
          # What the client reads is what the function saw.
          db.query("SELECT x FROM data LIMIT 50").each { |(x)| assert_nil x if pattern == "all" }
        end
        db.close
      end
    end
  end
end
