# frozen_string_literal: true

# The aggregates of the section `aggregates` of cases.json.

# Adds values row by row.
class Total
  attr_reader :sum

  def initialize = @sum = 0
  def update(added) = @sum += added
  def merge(other) = @sum += other.sum
  def finish = @sum
end

udaf "total(x BIGINT) -> BIGINT", Total

# Adds columns.
class TotalColumns < Total
  def update(added) = @sum += added.sum
end

udaf "total_columns(x BIGINT) -> BIGINT", TotalColumns, vectorized: true

# Keeps the order of rows.
udaf("listed(x BIGINT) -> BIGINT[]", start: -> { [] }, combine: :+.to_proc) { |all, x| all << x }

# Does the same by columns.
udaf "listed_columns(x BIGINT) -> BIGINT[]", vectorized: true, start: -> { [] }, combine: :+.to_proc do |all, x|
  all.concat(x)
end

# Has no result for a group without rows.
mean = ->((sum, weights)) { sum / weights unless weights.zero? }
both = ->(one, two) { one.zip(two).map(&:sum) }
udaf "weighted(x DOUBLE, weight DOUBLE) -> DOUBLE", start: -> { [0.0, 0.0] }, combine: both, finish: mean do |all, x, w|
  [all[0] + (x * w), all[1] + w]
end

# Counts NULLs.
udaf "missing(x BIGINT) -> BIGINT", nulls: :call, start: -> { 0 }, combine: :+.to_proc do |count, x|
  x.nil? ? count + 1 : count
end

# Has states and results of several values.
class Longest
  attr_reader :text, :rows

  def initialize
    @text = ""
    @rows = 0
  end

  def update(text)
    @rows += 1
    @text = [@text, text].max_by(&:size)
  end

  def merge(other)
    @rows += other.rows
    @text = [@text, other.text].max_by(&:size)
  end

  def finish = { text: @text, rows: @rows }
end

udaf "longest(s VARCHAR) -> STRUCT(text VARCHAR, rows BIGINT)", Longest

# Fails for a row of 13, and for a result of 100.
class Picky < Total
  def update(added)
    raise ArgumentError, "no 13" if added == 13

    super
  end

  def finish = @sum == 100 ? raise(ArgumentError, "no 100") : @sum
end

udaf "picky(x BIGINT) -> BIGINT", Picky
udaf "lenient(x BIGINT) -> BIGINT", Picky, on_error: :null

# Has states that cannot be merged. The option for errors does not count.
class Unmerged < Total
  def merge(_other) = raise("no merge")
end

udaf "unmerged(x BIGINT) -> BIGINT", Unmerged, on_error: :null
