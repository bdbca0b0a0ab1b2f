# frozen_string_literal: true

module Crosslane
  # A table function's scans, by their numbers. Opening one asks for its parts; workers then take one after the other.
  # @api private
  class Scans
    # What the host's lanes see of a table function.
    class Rows
      attr_reader :signature, :file

      def initialize(scans, signature, file)
        @scans = scans
        @signature = signature
        @file = file
      end

      def kind = "table"

      def scan(number) = @scans[number]

      def message = { signature: signature, admits_null: [false], file: file }
    end

    # @return [Declaration, Rows]
    attr_reader :opening, :rows

    def initialize(name, signature, split, block)
      parameters, columns = signature.split("->", 2)
      unless columns&.strip&.start_with?("(")
        raise DeclarationError, "a table function's signature ends with its columns: \"(n BIGINT) -> (i BIGINT)\", " \
                                "not #{signature.inspect}"
      end
      @split = split
      @block = block
      @scans = {}
      @lock = Mutex.new
      opening = ->(*arguments) { open(arguments) }
      @opening = Declaration.new(Crosslane.signature(name, "#{parameters} -> BIGINT"), opening,
                                 nulls: :call, deterministic: false)
      rows = Crosslane.signature(name, "(scan BIGINT) -> STRUCT#{columns.strip}")
      # It is checked here, where its mistake is.
      Declaration.new(rows, ->(scan) {})
      @rows = Rows.new(self, rows, block.source_location&.first || "")
    end

    # @return [Scan]
    def [](number) = @lock.synchronize { @scans.fetch(number) }

    private

    def open(arguments)
      parts = @split ? @split.call(*arguments).to_a.map { |part| [part, *arguments] } : [arguments]
      scan = Scan.new(@block, parts)
      @lock.synchronize do
        number = Scans.next_number
        SCANS[number] = @scans
        @scans[number] = scan
        number
      end
    end

    # Which function's scan a number is.
    SCANS = {} # rubocop:disable Style/MutableConstant
    private_constant :SCANS
    @next = 0

    class << self
      # @api private
      def next_number = @next += 1

      # Forgets the scans that are over.
      #
      # @api private
      def forget = Native.ended_scans&.each { |number| SCANS.delete(number)&.delete(number) }
    end
  end

  # One scan: its parts, which workers take.
  # @api private
  class Scan
    def initialize(block, parts)
      @block = block
      @parts = Thread::Queue.new(parts)
    end

    # Yields the rows of the parts that this worker gets.
    def each_row(&rows)
      while (part = take)
        @block.call(*part).each(&rows)
      end
    end

    private

    def take
      @parts.pop(true)
    rescue ThreadError
      nil
    end
  end
end
