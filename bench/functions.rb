# frozen_string_literal: true

# The Ruby functions that are measured as guests.

udf("rb_up(text VARCHAR) -> VARCHAR") { |text| text.upcase }

# About 20 us of arithmetic.
udf "rb_work(x BIGINT) -> BIGINT" do |x|
  total = x
  i = 0
  while i < 400
    total = (total * 31 + i) & 0xFFFFFF
    i += 1
  end
  total
end
