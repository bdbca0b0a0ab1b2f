# frozen_string_literal: true

module Crosslane
  # What goes wrong in Crosslane or the database itself. Exceptions of functions arrive as themselves.
  class Error < StandardError; end

  # A function was declared in a way that cannot work; the message says where.
  class DeclarationError < Error; end

  # Stands for a column's default value in the rows of {Database#append}.
  DEFAULT = Object.new
  def DEFAULT.inspect = "Crosslane::DEFAULT"
  DEFAULT.freeze

  # The SQL type INTERVAL: months, days and microseconds, which cannot be converted into each other.
  Interval = Struct.new(:months, :days, :microseconds) do
    # @return [String] as SQL writes it
    def to_s
      "#{months} months #{days} days #{microseconds} microseconds"
    end
  end

  # A value of a SQL UNION: the name of the member, and its value.
  Tagged = Struct.new(:tag, :value)

  # The SQL types TIME, TIME_NS and TIMETZ: a time of day of 0:00 to 24:00, without a date; TIMETZ's has a zone.
  class TimeOfDay
    include Comparable

    # @return [Integer] microseconds since midnight
    attr_reader :to_i

    # @return [Integer] 0 to 999, on top of the microseconds
    attr_reader :nanosecond

    # @return [Integer, nil] the zone's seconds east of UTC; nil without a zone
    attr_reader :utc_offset

    # @param hour [Integer] 0 to 24
    # @param nanosecond [Integer] 0 to 999
    # @param utc_offset [Integer, nil] seconds east of UTC
    # @return [TimeOfDay]
    def self.at(hour, minute = 0, second = 0, microsecond = 0, nanosecond: 0, utc_offset: nil)
      new(((hour * 60 + minute) * 60 + second) * 1_000_000 + microsecond, nanosecond, utc_offset)
    end

    # @param microseconds [Integer] since midnight
    def initialize(microseconds, nanosecond = 0, utc_offset = nil)
      unless microseconds.between?(0, 86_400_000_000 - (nanosecond.zero? ? 0 : 1))
        raise RangeError, "a time of day has 0 to 86400000000 microseconds, not #{microseconds}"
      end
      raise RangeError, "nanosecond must be in 0..999, not #{nanosecond}" unless nanosecond.between?(0, 999)

      @to_i, @nanosecond, @utc_offset = microseconds, nanosecond, utc_offset
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

    # With zones, in the order of the moments of a day; what has a zone cannot be compared with what has none.
    def <=>(other)
      return unless other.is_a?(TimeOfDay) && utc_offset.nil? == other.utc_offset.nil?

      order <=> other.order
    end

    def eql?(other) = other.is_a?(TimeOfDay) && utc_offset == other.utc_offset && order == other.order

    def hash = [order, utc_offset].hash

    # @return [String] such as "12:34:56.000001" or "12:34:56+05:30"
    def to_s
      fraction = nanosecond.zero? ? format(".%06d", microsecond) : format(".%06d%03d", microsecond, nanosecond)
      fraction = "" if fraction == ".000000"
      format("%02d:%02d:%02d", hour, minute, second) + fraction + zone
    end

    def inspect = "#<Crosslane::TimeOfDay #{self}>"

    protected

    def order = [to_i - (utc_offset || 0) * 1_000_000, nanosecond, utc_offset || 0]

    private

    def zone
      return "" unless utc_offset

      minutes, seconds = utc_offset.abs.divmod(60)
      parts = [*minutes.divmod(60), seconds]
      parts.pop while parts.size > 1 && parts.last.zero?
      (utc_offset.negative? ? "-" : "+") + parts.map { |part| format("%02d", part) }.join(":")
    end
  end

  # The classes of STRUCTs by the names of their fields, as long as something uses them.
  STRUCTS = ObjectSpace::WeakMap.new
  private_constant :STRUCTS

  class << self
    # The Struct class for STRUCTs with these fields. Values of the same names are of the same class.
    #
    # @param names [Array<String>]
    # @return [Class]
    # @raise [Error] if two fields have one name
    def struct_class(names)
      twice = names.find { |name| names.count(name) > 1 }
      raise Error, "a STRUCT with two fields named #{twice.inspect} is no Struct; name its fields, or cast it" if twice

      # There is one such String as long as something holds it.
      key = -names.inspect
      STRUCTS[key] || Struct.new(*names.map(&:to_sym)).tap do |type|
        type.instance_variable_set(:@names, key)
        STRUCTS[key] = type
      end
    end

    # @api private
    def strings(values) = values.map { |value| -value }.freeze
  end
end
