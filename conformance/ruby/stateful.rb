# frozen_string_literal: true

# The stateful functions of the section `stateful` of cases.json.

# Looks up a code in a table that the set-up has made.
class City
  def initialize = @places = { "JFK" => "New York", "SFO" => "San Francisco" }
  def call(code) = @places[code]
end

udf "city(code VARCHAR) -> VARCHAR", City

# Is called for NULL, too.
class Known < City
  def call(code) = @places.key?(code)
end

udf "known(code VARCHAR) -> BOOLEAN", Known, nulls: :call

# Takes a column, and adds a number from the set-up.
udf("raised(x BIGINT) -> BIGINT", setup: -> { 10 }, vectorized: true) { |by, x| x.map { |value| value + by } }

# Takes any number of arguments.
udf "joined(separator VARCHAR, *rest VARCHAR) -> VARCHAR", setup: -> { ["first"] } do |first, separator, *rest|
  [*first, *rest].join(separator)
end

# Takes any argument.
udf("shown(x ANY) -> VARCHAR", setup: -> { "it is" }) { |label, x| "#{label} #{x}" }

# Is called for several rows at once.
udf("waited(x BIGINT) -> BIGINT", setup: -> { 3 }, concurrency: 8) { |by, x| x * by }

# Keeps a count between rows.
udf "kept(x BIGINT) -> BIGINT", setup: -> { { count: 0 } }, deterministic: false do |state, _x|
  [state[:count] += 1, 2].min
end

# Fails for each second row.
udf "spotted(x BIGINT) -> BIGINT", setup: -> { 2 }, on_error: :null do |parts, x|
  (x % parts).zero? ? x : raise("a spot")
end

# Fails at its first call.
class Tried
  def call(given)
    @tries = @tries.to_i + 1
    @tries == 1 ? raise("not yet") : given
  end
end

udf "tried(x BIGINT) -> BIGINT", Tried, retries: 1

# Cannot be set up. The options for failed calls do not count.
class Unprepared
  def initialize = raise("no model")
  def call(given) = given
end

udf "unprepared(x BIGINT) -> BIGINT", Unprepared, on_error: :null, retries: 1
