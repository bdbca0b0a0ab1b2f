# frozen_string_literal: true

module Crosslane
  # The gems of the Gemfile beside a file of functions. Bundler makes them available, and no others.
  # Ruby uses one version of a gem, so this is done before the first gem is used.
  module Bundle
    # The Gemfile, as the engine names it. It is empty if there is none.
    VARIABLE = "CROSSLANE_GEMFILE"
    private_constant :VARIABLE

    # The gems of a Gemfile cannot be used.
    class Missing < LoadError; end

    class << self
      # Makes the gems available. A failure is kept for {check}, because the engine waits for the
      # answer of a load.
      def set_up
        gemfile = ENV.fetch(VARIABLE) { beside(ARGV) }
        use(gemfile) unless gemfile.empty?
      end

      # @raise [Missing] if the gems of the Gemfile cannot be used
      def check
        raise @failure if @failure
      end

      private

      # The Gemfile beside the file of `check FILE`.
      def beside(arguments)
        word, file = arguments
        gemfile = word == "check" ? File.join(File.dirname(file), "Gemfile") : ""
        File.file?(gemfile) ? gemfile : ""
      end

      def use(gemfile)
        require "bundler"
        ENV["BUNDLE_GEMFILE"] = gemfile
        own = own_folders
        Bundler.setup
        $LOAD_PATH.concat(own - $LOAD_PATH)
      rescue StandardError, LoadError => e
        missing = defined?(Bundler::GemNotFound) && e.is_a?(Bundler::GemNotFound)
        advice = missing ? ". Run `bundle install` in #{File.dirname(gemfile)}" : ""
        @failure = Missing.new("#{gemfile}: #{e.message.strip}#{advice}")
      end

      # The folders of this gem and of the gem that it needs. Bundler removes them if they are not in
      # the Gemfile. A version of the Gemfile comes first.
      def own_folders
        needed = Gem::Specification.find_all_by_name("bigdecimal").flat_map(&:full_require_paths)
        [File.expand_path("../..", __dir__), *needed]
      end
    end
  end
end

Crosslane::Bundle.set_up
