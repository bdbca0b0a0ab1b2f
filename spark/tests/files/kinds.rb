# frozen_string_literal: true

# Table functions and aggregates in Ruby.

udtf "ruby_numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)" do |n|
  (0...n).lazy.map { |i| [i, i.to_s] }
end

class Total
  attr_reader :sum

  def initialize = @sum = 0
  def update(x) = @sum += x
  def merge(other) = @sum += other.sum
  def finish = @sum
end
udaf "ruby_total(x BIGINT) -> BIGINT", Total
