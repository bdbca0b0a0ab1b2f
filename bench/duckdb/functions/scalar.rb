# frozen_string_literal: true

# The Ruby functions that are measured as guests.

require_relative "work"

udf("rb_up(text VARCHAR) -> VARCHAR") { |text| text.upcase }

udf("rb_work(x BIGINT) -> BIGINT") { |x| work(x) }
