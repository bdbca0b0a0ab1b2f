# frozen_string_literal: true

require "time"

module Crosslane
  # Adds the database's message to exceptions of blocks.
  module FromQuery
    # @return [String] the database's message: it names the function, the row and its arguments
    attr_accessor :query_error
  end

  # Leaves the block of a scan when the query needs no more rows.
  # @api private
  class ScanEnded < Exception; end # rubocop:disable Lint/InheritException -- a plain rescue must not catch it

  # Formats exceptions for users of SQL.
  module Errors
    OURS = "#{__dir__}/".freeze
    MOST_FRAMES = 20

    class << self
      # The class, the message and the backtrace of an exception. The backtrace begins at the user's
      # file. It omits frames of this library. It keeps frames of other libraries that the user's
      # code calls, because they show the cause.
      #
      # @return [Array(String, String, String)]
      def describe(error)
        if error.is_a?(SyntaxError)
          message, *rest = error.message.lines(chomp: true)
          return [error.class.name, message, rest.join("\n")]
        end
        lines = notes(error) + frames(error)
        cause = error.cause
        if cause && !cause.equal?(error)
          lines << "  caused by #{name(cause)}: #{message(cause)}"
          lines.concat(frames(cause))
        end
        [name(error), message(error), lines.join("\n")]
      end

      # The seconds after which a failed call may be tried again, if its exception says so: by a method
      # `retry_after`, as {Retry} has it, or by the header `Retry-After` of the answer that the
      # exception has (Net::HTTP, Faraday). RFC 9110, section 10.2.3: the header has seconds or a date.
      #
      # @return [Float, nil]
      def retry_after(error)
        named = error.respond_to?(:retry_after) ? error.retry_after : header(error)
        seconds(named)
      rescue SignalException
        raise
      rescue Exception # rubocop:disable Lint/RescueException -- methods of the user may do anything
        nil
      end

      # The result of {describe} as one text.
      def text(error)
        name, message, traceback = describe(error)
        ["#{name}: #{message}", traceback].reject(&:empty?).join("\n")
      end

      # Adds a text to the exception that {describe} shows: it says where the exception happened.
      def note(error, text)
        return if error.frozen?

        error.instance_variable_set(:@crosslane_notes, notes(error) | ["  #{text}"])
      end

      # Raises the exception that ended a block, as if the query had raised it: the same object,
      # with its cause and backtrace. If the block ended with a `throw` that no `catch` of its
      # thread took, it throws again.
      #
      # @param error [Exception, nil]
      # @param text [String] the database's message
      def raise_again(error, text)
        raise Error, text unless error

        throw(error.tag, error.value) if error.is_a?(UncaughtThrowError)
        error.extend(FromQuery).query_error = text unless error.frozen?
        raise error
      end

      private

      def name(error) = shown { error.class.name || "an anonymous #{error.class.superclass}" }

      def message(error) = shown { error.message.to_s }

      # A text that the user's object returns about itself. The object's method may raise any
      # exception.
      def shown
        text = yield
        text = text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace) unless text.encoding == Encoding::UTF_8
        text.scrub
      rescue SignalException
        raise
      rescue Exception => e # rubocop:disable Lint/RescueException -- such as SystemExit
        "(its message cannot be shown: #{e.class})"
      end

      def notes(error) = error.instance_variable_get(:@crosslane_notes).to_a

      def frames(error)
        locations = (error.backtrace_locations || []).reject do |location|
          location.path.start_with?(OURS, "<internal:") || location.path == "-e"
        end
        locations.first(MOST_FRAMES).flat_map do |location|
          line = "  at #{location.path}:#{location.lineno} in #{location.label}"
          source = source_line(location)
          source.empty? ? [line] : [line, "    #{source}"]
        end
      end

      def source_line(location)
        lines = SCRIPT_LINES[location.absolute_path || location.path]
        (lines[location.lineno - 1] || "").strip.scrub
      end

      def header(error)
        return error.response_headers&.fetch("retry-after", nil) if error.respond_to?(:response_headers)

        error.response["Retry-After"] if error.respond_to?(:response) && !error.response.is_a?(Hash)
      end

      def seconds(named)
        case named
        when Numeric, /\A\s*\d+(\.\d+)?\s*\z/ then named.to_f
        when String then [Time.httpdate(named) - Time.now, 0.0].max
        end
      end

      SCRIPT_LINES = Hash.new do |files, path|
        files[path] = File.readable?(path) ? File.readlines(path, encoding: "UTF-8") : []
      rescue SystemCallError
        files[path] = []
      end
      private_constant :SCRIPT_LINES
    end
  end
end
