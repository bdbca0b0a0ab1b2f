# frozen_string_literal: true

module Crosslane
  # An error of Crosslane or of the database. Exceptions of functions keep their own classes.
  class Error < StandardError; end

  # The declaration of a function is invalid. The message names the file and the line.
  class DeclarationError < Error; end

  # Asks for another try of a call, after a time. The option `retries` says how often there is one.
  #
  # @example
  #   raise Crosslane::Retry.new("the service is busy", after: 2.5)
  class Retry < Error
    # @return [Float] the seconds until the next try
    attr_reader :retry_after

    # @param message [String, nil] what the error says if there is no other try
    # @param after [Numeric] the seconds until the next try. It begins no earlier, and at most a tenth
    #   later. An hour is the most: a call that names a longer time fails at once.
    def initialize(message = nil, after:)
      raise ArgumentError, "after is a number of seconds from 0, not #{after.inspect}" unless
        after.is_a?(Numeric) && after >= 0

      super(message || "try again after #{after} s")
      @retry_after = after.to_f
    end
  end

  # Stands for a column's default value in the rows of {Database#append}.
  DEFAULT = Object.new
  def DEFAULT.inspect = "Crosslane::DEFAULT"
  DEFAULT.freeze

  # The SQL type INTERVAL: months, days and microseconds. None of them can be converted into
  # another.
  Interval = Struct.new(:months, :days, :microseconds) do
    # @return [String] the interval in SQL's syntax
    def to_s
      "#{months} months #{days} days #{microseconds} microseconds"
    end
  end

  # A value of a SQL UNION: the name of the member, and its value.
  Tagged = Struct.new(:tag, :value)

  # The SQL types TIME, TIME_NS and TIMETZ: a time of day from 0:00 to 24:00, without a date. A
  # TIMETZ has a UTC offset.
  class TimeOfDay
    include Comparable

    # @return [Integer] microseconds since midnight
    attr_reader :to_i

    # @return [Integer] nanoseconds in addition to the microseconds, 0 to 999
    attr_reader :nanosecond

    # @return [Integer, nil] the UTC offset in seconds, positive to the east; nil for TIME and
    #   TIME_NS
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

    # Times with offsets compare as moments of one day. A time with an offset and a time without one
    # cannot be compared.
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

  # The classes of STRUCT values, by the names of their fields. A class stays as long as it is used.
  STRUCTS = ObjectSpace::WeakMap.new
  private_constant :STRUCTS

  class << self
    # The Struct class for STRUCTs with these fields. STRUCTs with the same field names have the
    # same class.
    #
    # @param names [Array<String>]
    # @return [Class]
    # @raise [Error] if two fields have the same name
    def struct_class(names)
      twice = names.find { |name| names.count(name) > 1 }
      raise Error, "a STRUCT with two fields named #{twice.inspect} is no Struct; name its fields, or cast it" if twice

      # The same String object is returned as long as something references it.
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
