# frozen_string_literal: true

require "set"
require "crosslane/database/append"
require "crosslane/database/functions"
require "crosslane/database/open"
require "crosslane/database/result"
require "crosslane/database/weak_set"

module Crosslane
  # An embedded database. Those of the same file share it, and must have the same config.
  #
  # Each thread has a connection of its own, made when it needs one, so that threads and the blocks that run in lanes
  # can all use one Database. What belongs to a connection in SQL (transactions, temporary tables, SET) belongs to the
  # thread. A query inside of a block runs on its own connection too: it sees what is committed.
  class Database
    # DuckDB counts what is done only for a bar, which need not be printed.
    PROGRESS = ["SET enable_progress_bar = true", "SET enable_progress_bar_print = false"].freeze
    private_constant :PROGRESS
    @open = WeakSet.new
    @lock = Mutex.new

    class << self
      # Opens libduckdb: the one that `CROSSLANE_LIBDUCKDB` names, the gem's, or the system's.
      def load_duckdb
        own = File.exist?(LIBDUCKDB) ? LIBDUCKDB : "libduckdb.so"
        Native.load_duckdb(ENV.fetch("CROSSLANE_LIBDUCKDB", own))
      end

      # @api private
      def opened(database)
        @open << database
        at_exit { (@ending = true) && ensure_closer } unless @hooked
        @hooked = true
        ensure_closer
      end

      private

      # Has a thread that does nothing but close what is open at the program's end: the VM ends threads when all of
      # `at_exit` is done, in which a program may only begin (Minitest, Sinatra).
      def ensure_closer
        @lock.synchronize { @closer = closer unless @closer&.alive? }
      end

      def closer
        thread = Thread.new do
          loop { sleep }
        ensure
          @open.to_a.each(&:close) if @ending
        end
        thread.name = "crosslane-closer"
        # Before it has begun it has no end either.
        Thread.pass until thread.stop?
        thread
      end
    end

    # @see Crosslane.open
    def initialize(path = nil, config = {})
      Library.refuse_while_loading
      self.class.load_duckdb
      # What a config could not ask for later: the extension for functions in files.
      settings = { "allow_unsigned_extensions" => "true" }.merge(config.to_h { |name, value| [name.to_s, value.to_s] })
      @native = Native::Database.open(file(path&.to_s), settings)
      @pid = Process.pid
      # By thread: in the order in which they are lent, with whether they are.
      @connections = {}.compare_by_identity
      # What DuckDB's files stay open for: rows, statements, appenders.
      @users = WeakSet.new
      # Those that blocks have got, by name and whether among table functions: whether nobody else has them.
      @names = {}
      @definitions = 0
      # The connections that a transaction of {#transaction} runs on.
      @transactions = {}.compare_by_identity
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
      with_connection { |connection| ask(connection, sql, *parameters) }
    end

    # Runs SQL as {#query} does, and yields the rows while they are made: neither DuckDB nor Ruby holds more than a few
    # thousands of them, however many there are. Leaving the block ends the query.
    #
    # The query has the connection of this thread until its end: what the block asks the database meanwhile has another,
    # as in a block that SQL calls.
    #
    #   db.stream("FROM flights") { |carrier, delay| file.puts("#{carrier} #{delay}") }
    #   db.stream("FROM flights").lazy.select { |_, delay| delay > 60 }.first(10)
    #
    # @param sql [String] see {#query}
    # @param parameters [Array] see {#query}
    # @yieldparam row [Array] its values
    # @return [self, Enumerator]
    # @raise [Error] see {#query}, also if the database is closed in between
    def stream(sql, *parameters, &block)
      return enum_for(:stream, sql, *parameters) unless block

      Host.ensure_running
      with_connection do |connection|
        rows = keep(connection.stream(sql, parameters))
        while (chunk = rows.fetch)
          chunk.each(&block)
        end
      ensure
        rows&.free
      end
      self
    end

    # Begins a query that runs beside the program: on a thread and a connection of its own, which knows nothing of this
    # thread's transaction, temporary tables and settings.
    #
    # @param sql [String] see {#query}
    # @param parameters [Array] see {#query}
    # @return [PendingQuery]
    # @raise [Error] if the database is closed
    def start(sql, *parameters)
      Host.ensure_running
      raise Error, "the database is closed" if @closed

      connection = @native.connect
      PROGRESS.each { |setting| ask(connection, setting) }
      keep(PendingQuery.new(connection) { ask(connection, sql, *parameters) })
    end

    # @return [Object] the first value of the first row of {#query}
    def value(sql, *parameters) = query(sql, *parameters).first&.first

    # Prepares a statement, to be run many times, by any thread.
    #
    # @return [Statement]
    # @raise [Error] what is wrong with it
    def prepare(sql)
      Host.ensure_running
      Statement.new(sql, self)
    end

    # Runs a block in a transaction of this thread: committed at its end, rolled back if it is left in another way.
    # A transaction inside of another is a part of it.
    #
    # @return [Object] what the block returns
    # @raise [Error] if the transaction cannot be begun or committed, which has rolled it back then; what the block
    #   raises as itself, also if there is nothing left to roll back
    def transaction
      connection = with_connection(&:itself)
      return yield(self) if @transactions[connection]

      query("BEGIN")
      @transactions[connection] = true
      begin
        result = yield(self)
        done = true
        result
      ensure
        @transactions.delete(connection)
        done ? query("COMMIT") : roll_back
      end
    end

    # Closes the database, of all threads: what is not at work just now is freed when this returns, and the file with
    # it. Rows that were not read, and statements, cannot be used any more.
    def close
      return if @closed

      @closed = true
      return if Process.pid != @pid

      @users.to_a.each(&:free)
      @lock.synchronize { @connections.each_value { |connections| close_all(connections) } }
      @native.close
      Host.forget
    end

    def closed? = @closed

    # @api private
    # @return [Integer] how many blocks have got names: a statement that was prepared before may mean another
    attr_reader :definitions

    def inspect = "#<Crosslane::Database#{" closed" if closed?}>"

    # Lends this thread's connection: its first that no query runs on. A block that runs on this very thread, in the
    # midst of a query, gets the next, as does another fiber.
    #
    # @api private
    def with_connection
      raise Error, "the database is closed" if @closed

      connections = @connections[Thread.current] || own_connections
      connection, = connections.find { |_, lent| !lent }
      connection ||= @native.connect
      connections[connection] = true
      begin
        # It may have been closed while this connected.
        raise Error, "the database is closed" if @closed

        yield connection
      ensure
        connections[connection] = false
        connection.close if @closed
        Host.forget
      end
    end

    # Notes what must be freed with the database.
    #
    # @api private
    def keep(user)
      @users << user
      return user unless @closed

      user.free
      raise Error, "the database is closed"
    end

    private

    # The rows of a query on a connection, which they keep open until they are freed.
    def ask(connection, sql, *parameters) = Result.new(keep(connection.query(sql, parameters)))

    # The one name of a file; nil for a database in memory.
    def file(path)
      return if path.nil? || path.empty? || path == ":memory:"

      path.match?(/\A\w{2,}:|\A:/) ? path : File.realdirpath(path)
    rescue SystemCallError
      # DuckDB says why it cannot be opened.
      File.expand_path(path)
    end

    # Does all or nothing: in a transaction of its own, unless the program has one.
    def atomically(connection)
      return yield if transaction?(connection)

      ask(connection, "BEGIN")
      begin
        yield
        done = true
      ensure
        ask(connection, done ? "COMMIT" : "ROLLBACK")
      end
    end

    # Whether the program has begun a transaction: only then are two queries in one.
    def transaction?(connection) = Array.new(2) { ask(connection, "SELECT txid_current()").first }.uniq.one?

    # Their thread may add one meanwhile, which no iteration allows.
    def close_all(connections) = connections.keys.each(&:close) # rubocop:disable Style/HashEachMethods

    # A place for this thread's connections; those of threads that have ended are let go.
    def own_connections
      @lock.synchronize do
        ended, = @connections.partition { |thread, _| !thread.alive? }
        ended.each { |thread, connections| @connections.delete(thread) && close_all(connections) }
        @connections[Thread.current] = {}.compare_by_identity
      end
    end

    # After an error that counts more than whether this works: the transaction, or the database, may be gone already.
    def roll_back
      query("ROLLBACK")
    rescue Error
      nil
    end
  end
end
