# frozen_string_literal: true

# The functions that the benchmark of the server calls in Ruby.

udf("rb_nothing(x BIGINT) -> BIGINT") { |x| x }

udf("rb_add(x BIGINT) -> BIGINT") { |x| x + 1 }

udf("rb_spin(us BIGINT) -> BIGINT") do |us|
  over = Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) + us
  nil while Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond) < over
  us
end
