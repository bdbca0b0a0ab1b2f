# frozen_string_literal: true

udf "initials(name VARCHAR) -> VARCHAR" do |name|
  name.split.map { |word| word[0] }.join
end

udf "ruby_add(x BIGINT, y BIGINT) -> BIGINT", vectorized: true do |x, y|
  x.zip(y).map(&:sum)
end

udf "ruby_fails(x BIGINT) -> BIGINT" do |x|
  raise ArgumentError, "no #{x}" if x == 7

  x
end

udf "ruby_pid(x BIGINT) -> BIGINT", deterministic: false do |_x|
  Process.pid
end
