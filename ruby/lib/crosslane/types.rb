# frozen_string_literal: true

module Crosslane
  # What goes wrong in Crosslane or the database itself. Exceptions of functions arrive as themselves.
  class Error < StandardError; end

  # A function was declared in a way that cannot work; the message says where.
  class DeclarationError < Error; end

  # The SQL type INTERVAL: months, days and microseconds, which cannot be converted into each other.
  Interval = Struct.new(:months, :days, :microseconds) do
    # @return [String] as SQL writes it
    def to_s
      "#{months} months #{days} days #{microseconds} microseconds"
    end
  end

  # The SQL type TIME: a time of day of 0:00 to 24:00, without a date and a zone.
  class TimeOfDay
    include Comparable

    # @return [Integer] microseconds since midnight
    attr_reader :to_i

    # @param hour [Integer] 0 to 24
    # @return [TimeOfDay]
    def self.at(hour, minute = 0, second = 0, microsecond = 0)
      new(((hour * 60 + minute) * 60 + second) * 1_000_000 + microsecond)
    end

    # @param microseconds [Integer] since midnight
    def initialize(microseconds)
      unless microseconds.between?(0, 86_400_000_000)
        raise RangeError, "a time of day has 0 to 86400000000 microseconds, not #{microseconds}"
      end

      @to_i = microseconds
      freeze
    end

    # @return [Integer] 0 to 24
    def hour = to_i / 3_600_000_000

    # @return [Integer] 0 to 59
    def minute = to_i / 60_000_000 % 60

    # @return [Integer] 0 to 59
    def second = to_i / 1_000_000 % 60

    # @return [Integer] 0 to 999999
    def microsecond = to_i % 1_000_000

    def <=>(other) = other.is_a?(TimeOfDay) ? to_i <=> other.to_i : nil

    def eql?(other) = other.is_a?(TimeOfDay) && to_i == other.to_i

    def hash = to_i.hash

    # @return [String] such as "12:34:56.000001"
    def to_s
      fraction = microsecond.zero? ? "" : format(".%06d", microsecond)
      format("%02d:%02d:%02d", hour, minute, second) + fraction
    end

    def inspect = "#<Crosslane::TimeOfDay #{self}>"
  end

  # The classes of STRUCTs by the names of their fields.
  STRUCTS = {} # rubocop:disable Style/MutableConstant
  private_constant :STRUCTS

  class << self
    # The Struct class for STRUCTs with these fields. Values of the same names are of the same class.
    #
    # @param names [Array<String>]
    # @return [Class]
    def struct_class(names)
      STRUCTS[names] ||= Struct.new(*names.map(&:to_sym))
    end

    # @api private
    def strings(values) = values.map { |value| -value }.freeze

    # @api private
    def codes(values) = values.each_with_index.to_h { |value, code| [-value, code] }.freeze
  end
end
