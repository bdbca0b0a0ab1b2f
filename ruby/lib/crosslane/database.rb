# frozen_string_literal: true

require "crosslane/result"
require "crosslane/scan"
require "crosslane/accumulators"

module Crosslane
  LIBDUCKDB = File.expand_path("libduckdb.so", __dir__)
  private_constant :LIBDUCKDB

  class << self
    # Opens a database, and closes it again behind a block.
    #
    #   db = Crosslane.open("sales.duckdb")
    #   db.udf(:slug, "(title VARCHAR) -> VARCHAR") { |title| title.downcase.tr(" ", "-") }
    #   db.query("SELECT slug(title) FROM books WHERE year > ?", 1990).each { |slug,| puts slug }
    #
    # @param path [String, nil] a file, or nil for a database in memory
    # @param functions [Array<String>] files of functions to load
    # @param config [Hash] DuckDB's settings, such as `threads: 4`
    # @yieldparam database [Database]
    # @raise [Error] if DuckDB refuses
    def open(path = nil, functions: [], config: {})
      database = Database.new(path, config)
      done = false
      database.load(*functions)
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
  end

  # An embedded database.
  #
  # Each thread has a connection of its own, made when it needs one, so that threads and the blocks that run in lanes
  # can all use one Database. What belongs to a connection in SQL (transactions, temporary tables, SET) belongs to the
  # thread. A query inside of a block runs on its own connection too: it sees what is committed.
  class Database
    EXTENSION = File.expand_path("crosslane.duckdb_extension", __dir__)
    private_constant :EXTENSION
    @open = ObjectSpace::WeakMap.new

    class << self
      # Opens libduckdb: the one that `CROSSLANE_LIBDUCKDB` names, the gem's, or the system's.
      def load_duckdb
        own = File.exist?(LIBDUCKDB) ? LIBDUCKDB : "libduckdb.so"
        Native.load_duckdb(ENV.fetch("CROSSLANE_LIBDUCKDB", own))
      end

      # @api private
      def opened(database)
        at_exit { @open.each_key(&:close) } if @open.size.zero? && !@hooked
        @hooked = true
        @open[database] = true
      end
    end

    # @see Crosslane.open
    def initialize(path = nil, config = {})
      self.class.load_duckdb
      # What a config could not ask for later: the extension for functions in files.
      settings = { "allow_unsigned_extensions" => "true" }.merge(config.to_h { |name, value| [name.to_s, value.to_s] })
      @native = Native::Database.open(path&.to_s, settings)
      @pid = Process.pid
      # Those that no query runs on, by thread.
      @connections = {}.compare_by_identity
      @lock = Mutex.new
      @closed = false
      self.class.opened(self)
    end

    # Runs SQL: all statements of a text, the last of them with the parameters.
    #
    #   db.query("SELECT * FROM flights WHERE carrier = ? LIMIT ?", "UA", 10)
    #   db.query("SELECT * FROM flights WHERE carrier = $carrier", { carrier: "UA" })
    #
    # @param sql [String]
    # @param parameters [Array] for `?` and `$1`, or one Hash for `$name`
    # @return [Result] the rows
    # @raise [Error] what the database says; exceptions of blocks as themselves
    def query(sql, *parameters)
      Host.ensure_running
      with_connection { |connection| Result.new(connection.query(sql, parameters)) }
    end

    # @return [Object] the first value of the first row of {#query}
    def value(sql, *parameters) = query(sql, *parameters).first&.first

    # Prepares a statement, to be run many times.
    #
    # @return [Statement]
    def prepare(sql)
      Host.ensure_running
      with_connection { |connection| Statement.new(connection.prepare(sql)) }
    end

    # Runs a block in a transaction of this thread: committed at its end, rolled back if it is left in another way.
    # A transaction inside of another is a part of it.
    #
    # @return [Object] what the block returns
    def transaction
      return yield(self) if Thread.current.thread_variable_get(transaction_key)

      query("BEGIN")
      Thread.current.thread_variable_set(transaction_key, true)
      done = false
      begin
        result = yield(self)
        done = true
        result
      ensure
        Thread.current.thread_variable_set(transaction_key, nil)
        query(done ? "COMMIT" : "ROLLBACK")
      end
    end

    # Appends rows to a table, much faster than INSERT.
    #
    #   db.append("points", [[1, 2.0], [3, 4.0]])
    #   db.append("points") { |rows| rows << [1, 2.0] << [3, 4.0] }
    #
    # @param table [String] a name, with its schema if it needs one: "main.points"
    # @param rows [Enumerable<Array>]
    # @yieldparam rows [Appender]
    # @return [Integer] how many rows were appended
    # @raise [Error] for a row that does not fit, by its number
    def append(table, rows = nil)
      *schema, name = table.to_s.split(".")
      with_connection do |connection|
        appender = Appender.new(connection.appender(schema.first, name))
        appender.fill { rows ? rows.each { |row| appender << row } : yield(appender) }
      end
    end

    # Makes a block a function of SQL, run by host lanes: threads of this very program. The block sees the program's
    # variables, files and sockets. What waits runs side by side; what computes takes turns, since Ruby
    # has one lock: such functions are quicker as a guest ({#load}).
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(x BIGINT) -> BIGINT"
    # @param options [Hash] those of {DSL#udf}, but `memory_limit`
    # @return [Declaration]
    # @raise [DeclarationError, Error]
    def udf(name, signature, **options, &block)
      raise DeclarationError, "udf needs a block" unless block

      declaration = declare(name, signature, block, options)
      register { |connection| connection.register_scalar(Host.add(declaration), declaration.message.to_json) }
      declaration
    end

    # Makes a block a table function. With `split`, whatever that returns is the parts of a scan, and workers run
    # the block for each part, side by side; without, the block runs once.
    #
    #   sitemap = ->(site) { links(site) }
    #   db.table(:pages, "(site VARCHAR) -> (url VARCHAR, size BIGINT)", split: sitemap) do |url, site|
    #     [[url, fetch(site, url).bytesize]]
    #   end
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(n BIGINT) -> (i BIGINT, name VARCHAR)"
    # @param split [#call, nil] is given the arguments, and returns the parts, an Enumerable
    # @yieldparam part what the worker is to do (only with `split`), and then the arguments
    # @yieldreturn [Enumerable<Array, Hash, Struct>] the rows, made when they are wanted if it is lazy
    # @raise [DeclarationError, Error]
    def table(name, signature, split: nil, &block)
      raise DeclarationError, "table needs a block" unless block

      scans = Scans.new(name, signature, split, block)
      register do |connection|
        functions = [scans.opening, scans.rows].map { |function| [Host.add(function), function.message.to_json] }
        connection.register_table(*functions, !split.nil?)
      end
      nil
    end

    # Makes a block an aggregate function. The block is given what was accumulated so far and the arguments of a row,
    # and returns what is accumulated then.
    #
    #   longer = ->(a, b) { [a, b].compact.max_by(&:size) }
    #   db.aggregate(:longest, "(word VARCHAR) -> VARCHAR", combine: longer) { |best, word| longer.call(best, word) }
    #
    # @param name [Symbol, String]
    # @param signature [String] of the aggregate: the row's arguments and the result
    # @param combine [#call] makes one of two accumulated values
    # @param start [#call, nil] makes the first accumulated value; nil without
    # @param finish [#call, nil] makes the result of the accumulated value; itself without
    # @param options [Hash] `nulls`
    # @raise [DeclarationError, Error]
    def aggregate(name, signature, combine:, start: nil, finish: nil, **options, &block)
      raise DeclarationError, "aggregate needs a block" unless block

      states = Accumulators.new(name, signature, start, block, combine, finish, options)
      register do |connection|
        functions = [states.stepping, states.combining, states.finishing]
        functions.map! { |function| [Host.add(function), function.message.to_json] }
        connection.register_aggregate(name.to_s, *functions)
      end
      nil
    end

    # Loads files of functions in Ruby, Python or JavaScript. They run as guests: in processes of their own, on every
    # core, and out of reach of this program.
    #
    # @param paths [Array<String>]
    # @raise [Error] if a file cannot be loaded
    def load(*paths)
      return if paths.empty?

      unless @extension
        file = ENV.fetch("CROSSLANE_EXTENSION", EXTENSION)
        raise Error, "there is no extension at #{file}: the gem was not built" unless File.exist?(file)

        query("LOAD '#{file.gsub("'", "''")}'")
        # Guests in Ruby run in this very Ruby.
        query("CALL crosslane_set('ruby', ?)", RbConfig.ruby)
        @extension = true
      end
      paths.each { |path| query("CALL crosslane_load(?)", File.expand_path(path)).to_a }
      nil
    end

    # Closes the connections of all threads, and with them the database.
    def close
      return if @closed

      @closed = true
      return if Process.pid != @pid

      @connections.each_value { |connections| connections.each(&:close) }
      @native.close
    end

    def closed? = @closed

    def inspect = "#<Crosslane::Database#{" closed" if closed?}>"

    private

    def declare(name, signature, block, options)
      raise DeclarationError, "memory_limit is for functions in files (guests)" if options.key?(:memory_limit)

      Declaration.new(Crosslane.signature(name, signature), block, **options)
    end

    def register(&block)
      Host.ensure_running
      with_connection(&block)
    end

    # Lends this thread's connection: its first that no query runs on. A block that runs on this very thread, in the
    # midst of a query, gets the next.
    def with_connection
      raise Error, "the database is closed" if @closed

      connections = @connections[Thread.current] || own_connections
      lent = connections.pop || @native.connect
      begin
        yield lent
      ensure
        connections.push(lent)
      end
    end

    # A place for this thread's connections; those of threads that have ended are let go.
    def own_connections
      @lock.synchronize do
        ended, = @connections.partition { |thread, _| !thread.alive? }
        ended.each { |thread, connections| @connections.delete(thread) && connections.each(&:close) }
        @connections[Thread.current] = []
      end
    end

    def transaction_key = @transaction_key ||= :"crosslane_transaction_#{object_id}"
  end

  class << self
    # @api private
    def signature(name, signature)
      name = name.to_s
      name = "\"#{name.gsub('"', '""')}\"" unless name.match?(/\A[[:alpha:]_][[:alnum:]_]*\z/)
      "#{name}#{signature}"
    end
  end
end
