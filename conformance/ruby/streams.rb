# frozen_string_literal: true

udtf "late(flights TABLE(id BIGINT, delay INTEGER)) -> TABLE(id BIGINT, told VARCHAR)" do |flights|
  flights.select { |flight| flight.delay.to_i > 60 }.map { |flight| [flight.id, "#{flight.delay} minutes"] }
end

udtf "each(names TABLE(name VARCHAR, times INTEGER)) -> TABLE(name VARCHAR, place BIGINT)" do |names|
  names.lazy.flat_map { |row| Array.new(row.times) { |place| { place: place, name: row.name } } }
end

udtf "half(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)" do |numbers|
  numbers.map(&:n).select(&:even?).map { |n| n / 2 }
end

udtf "nothing(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)" do |_numbers|
  nil
end

udtf "totals(numbers TABLE(n BIGINT, x DOUBLE)) -> TABLE(rows BIGINT, total DOUBLE)", vectorized: true do |numbers|
  { rows: [numbers[:n].size], total: [numbers[:x].sum] }
end

udtf "twice(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", vectorized: true do |numbers|
  [numbers, [numbers[:n]]]
end

udtf("same(t TABLE(s VARCHAR, l INTEGER[], d DATE)) -> TABLE(s VARCHAR, l INTEGER[], d DATE)") { |rows| rows }

udtf "odd(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)" do |numbers|
  numbers.map { |row| row.n.even? ? RuntimeError.new("#{row.n} is even") : row.n }
end

udtf "odd_or_null(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", on_error: :null do |numbers|
  numbers.lazy.map do |row|
    raise "four" if row.n == 4

    row.n.even? ? RuntimeError.new("#{row.n} is even") : row.n
  end
end

udtf "raises(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)" do |_numbers|
  Enumerator.new do |rows|
    rows << 1
    raise "no more"
  end
end

udtf("wrong(numbers TABLE(n BIGINT)) -> TABLE(n UTINYINT)") { |numbers| numbers.map(&:n) }

# Cannot be set up. The options for failed calls do not count.
class Unprepared
  def initialize = raise("no model")
  def call(given) = given
end

udtf "unprepared(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)", Unprepared, on_error: :null, retries: 1
