# frozen_string_literal: true

module Crosslane
  # What exceptions of blocks know beside themselves.
  module FromQuery
    # @return [String] what the database says: the function, the row and its arguments
    attr_accessor :query_error
  end

  # A scan needs no more rows, and its block is left.
  # @api private
  class ScanEnded < Exception; end # rubocop:disable Lint/InheritException -- nobody should rescue it by accident

  # Exceptions as the user of SQL should read them.
  module Errors
    OURS = "#{__dir__}/".freeze
    MOST_FRAMES = 20

    class << self
      # The class, the message and the backtrace of an exception, from the user's file on. Frames of this library
      # are left out; those of others below the user's code are kept, because they tell what went wrong.
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

      # The same as a text.
      def text(error)
        name, message, traceback = describe(error)
        ["#{name}: #{message}", traceback].reject(&:empty?).join("\n")
      end

      # Has {describe} say where an exception came from.
      def note(error, text)
        return if error.frozen?

        error.instance_variable_set(:@crosslane_notes, notes(error) | ["  #{text}"])
      end

      # Raises what a block was left with, as if the query had raised it: the exception itself, with its cause and
      # backtrace. A `throw` that no `catch` of its thread took goes on here.
      #
      # @param error [Exception, nil]
      # @param text [String] what the database says
      def raise_again(error, text)
        raise Error, text unless error

        throw(error.tag, error.value) if error.is_a?(UncaughtThrowError)
        error.extend(FromQuery).query_error = text unless error.frozen?
        raise error
      end

      private

      def name(error) = shown { error.class.name || "an anonymous #{error.class.superclass}" }

      def message(error) = shown { error.message.to_s }

      # What the user's object shows of itself: it may do anything when it is asked.
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

      SCRIPT_LINES = Hash.new do |files, path|
        files[path] = File.readable?(path) ? File.readlines(path, encoding: "UTF-8") : []
      rescue SystemCallError
        files[path] = []
      end
      private_constant :SCRIPT_LINES
    end
  end
end
