# frozen_string_literal: true

module Crosslane
  LIBDUCKDB = File.expand_path("../libduckdb.so", __dir__)
  # DuckDB's settings that forbid loading files.
  LOCKS = %w[enable_external_access lock_configuration].freeze
  private_constant :LIBDUCKDB, :LOCKS

  class << self
    # Opens a database. With a block, it closes the database after the block.
    #
    #   db = Crosslane.open("sales.duckdb")
    #   db.udf(:slug, "(title VARCHAR) -> VARCHAR") { |title| title.downcase.tr(" ", "-") }
    #   db.query("SELECT slug(title) FROM books WHERE year > ?", 1990).each { |slug,| puts slug }
    #
    # @param path [String, nil] a file, or nil for a database in memory
    # @param functions [Array<String>] files of functions to load
    # @param config [Hash] DuckDB's settings, such as `threads: 4`. Settings that forbid external
    #   access or lock the configuration take effect after the functions are loaded
    # @param restore [Boolean] whether functions are loaded that the database keeps, from CREATE
    #   FUNCTION. Those that this user does not trust are not loaded; a warning tells which
    # @yieldparam database [Database]
    # @raise [Error] if DuckDB cannot open the database
    def open(path = nil, functions: [], config: {}, restore: true)
      locks, config = config.transform_keys(&:to_s).partition { |name, _| LOCKS.include?(name) }.map(&:to_h)
      database = Database.new(path, config)
      done = false
      database.restore if restore && path
      database.load(*functions)
      locks.sort.each { |name, value| database.query("SET #{name} = '#{value}'") }
      return database.tap { done = true } unless block_given?

      yield database
    ensure
      database&.close unless done
    end

    # @return [String] the version of DuckDB
    def duckdb_version
      Database.load_duckdb
      Native.duckdb_version
    end

    # @api private
    def signature(name, signature)
      name = name.to_s
      name = "\"#{name.gsub('"', '""')}\"" unless name.match?(/\A[[:alpha:]_][[:alnum:]_]*\z/)
      "#{name}#{signature}"
    end
  end
end
