# frozen_string_literal: true

# Ruby functions on New York's flights of 2013.

EARTH_RADIUS_MILES = 3958.7613

def radians(degrees) = degrees * Math::PI / 180

# Miles along the surface between two places (the haversine formula).
udf "great_circle_rb(lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE) -> DOUBLE" do |lat1, lon1, lat2, lon2|
  a = radians(lat1)
  b = radians(lat2)
  h = Math.sin((b - a) / 2)**2 + Math.cos(a) * Math.cos(b) * Math.sin(radians(lon2 - lon1) / 2)**2
  2 * EARTH_RADIUS_MILES * Math.asin(Math.sqrt(h))
end

# The n-th such day of its month, as people say it: "2nd Tuesday of March".
udf "in_words(day DATE) -> VARCHAR"
def in_words(day)
  ordinal = %w[1st 2nd 3rd 4th 5th].fetch((day.day - 1) / 7)
  "#{ordinal} #{day.strftime("%A of %B")}"
end

# Where a delay lies among all of its batch, which only a function of whole columns can tell.
udf "rank_in_batch(delay DOUBLE) -> BIGINT", vectorized: true do |delays|
  sorted = delays.sort
  delays.map { |delay| sorted.bsearch_index { |other| other >= delay } }
end

# The parts of a tail number, as a STRUCT.
udf "tail(number VARCHAR) -> STRUCT(country VARCHAR, digits BIGINT, suffix VARCHAR)" do |number|
  match = number.match(/\A(N)(\d+)([A-Z]*)\z/)
  match && { country: "USA", digits: match[2].to_i, suffix: match[3] }
end
