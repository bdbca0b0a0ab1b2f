# frozen_string_literal: true

require "set"
require "crosslane/database/append"
require "crosslane/database/functions"
require "crosslane/database/open"
require "crosslane/database/result"
require "crosslane/database/weak_set"

module Crosslane
  # An embedded database. Database objects of the same file share it, and must have the same config.
  #
  # Each thread has its own connection, made when the thread first needs it. So threads, and blocks
  # that run in lanes, can all use one Database. SQL's state of a connection (transactions,
  # temporary tables, SET) belongs to the thread. A query inside a block runs on its own connection
  # too: it sees only committed data.
  class Database
    # DuckDB measures progress only if its progress bar is on. The bar need not be printed.
    PROGRESS = ["SET enable_progress_bar = true", "SET enable_progress_bar_print = false"].freeze
    private_constant :PROGRESS
    @open = WeakSet.new
    @lock = Mutex.new

    class << self
      # Opens libduckdb: the library that `CROSSLANE_LIBDUCKDB` names, the gem's, or the system's.
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

      # Starts a thread that only closes the open databases when the program ends. Ruby ends threads
      # after all blocks of `at_exit`. `at_exit` is too early for this, because some programs run
      # inside it (Minitest, Sinatra).
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
        # The thread must sleep first: a thread that is ended before it begins runs no `ensure`.
        Thread.pass until thread.stop?
        thread
      end
    end

    # @see Crosslane.open
    def initialize(path = nil, config = {})
      Library.refuse_while_loading
      self.class.load_duckdb
      # A setting that a config cannot change later: DuckDB must allow the extension for functions
      # in files.
      settings = { "allow_unsigned_extensions" => "true" }.merge(config.to_h { |name, value| [name.to_s, value.to_s] })
      @native = Native::Database.open(file(path&.to_s), settings)
      @pid = Process.pid
      # The connections of each thread, in the order in which they are lent, and whether each is
      # lent now.
      @connections = {}.compare_by_identity
      # The objects that keep DuckDB's files open: results, statements, appenders.
      @users = WeakSet.new
      # The names of blocks, with whether each names a table function; the value tells whether no
      # other function has it.
      @names = {}
      @definitions = 0
      # The connections on which a transaction of {#transaction} runs.
      @transactions = {}.compare_by_identity
      @lock = Mutex.new
      @closed = false
      self.class.opened(self)
    end

    # Runs all statements of an SQL text. The last statement gets the parameters.
    #
    #   db.query("SELECT * FROM flights WHERE carrier = ? LIMIT ?", "UA", 10)
    #   db.query("SELECT * FROM flights WHERE carrier = $carrier", { carrier: "UA" })
    #
    # @param sql [String]
    # @param parameters [Array] values for `?` and `$1`, or one Hash for `$name`
    # @return [Result] the rows
    # @raise [Error] if the database reports an error; exceptions of blocks are raised unchanged
    def query(sql, *parameters)
      Host.ensure_running
      with_connection { |connection| ask(connection, sql, *parameters) }
    end

    # Runs SQL as {#query} does, and yields the rows while the query makes them. DuckDB and Ruby
    # hold a few thousand rows at most, however many there are. Leaving the block ends the query.
    #
    # The query uses this thread's connection until it ends. Queries that the block runs meanwhile
    # use another connection, as queries of a block that SQL calls do.
    #
    #   db.stream("FROM flights") { |carrier, delay| file.puts("#{carrier} #{delay}") }
    #   db.stream("FROM flights").lazy.select { |_, delay| delay > 60 }.first(10)
    #
    # @param sql [String] see {#query}
    # @param parameters [Array] see {#query}
    # @yieldparam row [Array] the values of a row
    # @return [self, Enumerator]
    # @raise [Error] see {#query}; also if the database is closed before the last row
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

    # Starts a query on a thread and a connection of its own, and returns at once. That connection
    # does not see this thread's transaction, temporary tables and settings.
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

    # Prepares a statement that any thread can run many times.
    #
    # @return [Statement]
    # @raise [Error] if the statement is invalid
    def prepare(sql)
      Host.ensure_running
      Statement.new(sql, self)
    end

    # Runs a block in a transaction of this thread. It commits at the block's end. If the block is
    # left in another way, it rolls back. A transaction inside another one is a part of it.
    #
    # @return [Object] what the block returns
    # @raise [Error] if the transaction cannot begin or commit; a failed commit rolls it back. The
    #   block's exception is raised unchanged, also if nothing remains to roll back
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

    # Closes the database for all threads. Everything that is not in use at this moment is freed
    # before this returns, also the file. Unread rows and statements cannot be used afterwards.
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
    # @return [Integer] counts the definitions of blocks; a statement that was prepared before the
    #   last one may call another function
    attr_reader :definitions

    def inspect = "#<Crosslane::Database#{" closed" if closed?}>"

    # Lends this thread's first connection on which no query runs. A block that runs on this thread
    # inside a query gets another connection, and so does another fiber.
    #
    # @api private
    def with_connection
      raise Error, "the database is closed" if @closed

      connections = @connections[Thread.current] || own_connections
      connection, = connections.find { |_, lent| !lent }
      connection ||= @native.connect
      connections[connection] = true
      begin
        # Another thread may have closed the database during the connect.
        raise Error, "the database is closed" if @closed

        yield connection
      ensure
        connections[connection] = false
        connection.close if @closed
        Host.forget
      end
    end

    # Registers an object that must be freed with the database.
    #
    # @api private
    def keep(user)
      @users << user
      return user unless @closed

      user.free
      raise Error, "the database is closed"
    end

    private

    # The rows of a query. They keep the connection open until they are freed.
    def ask(connection, sql, *parameters) = Result.new(keep(connection.query(sql, parameters)))

    # The canonical path of a database file; nil for a database in memory.
    def file(path)
      return if path.nil? || path.empty? || path == ":memory:"

      path.match?(/\A\w{2,}:|\A:/) ? path : File.realdirpath(path)
    rescue SystemCallError
      # The path cannot be resolved. DuckDB's own error says why the file cannot be opened.
      File.expand_path(path)
    end

    # Makes all changes of the block or none: in its own transaction, unless the program has begun
    # one.
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

    # Whether the program has begun a transaction. Two queries have the same transaction number only
    # then.
    def transaction?(connection) = Array.new(2) { ask(connection, "SELECT system.main.txid_current()").first }.uniq.one?

    # `keys` is a copy: the connections' thread may add one meanwhile, and Ruby forbids that during
    # an iteration.
    def close_all(connections) = connections.keys.each(&:close) # rubocop:disable Style/HashEachMethods

    # The connections of this thread, in a new list if it has none. Connections of ended threads are
    # removed.
    def own_connections
      @lock.synchronize do
        ended, = @connections.partition { |thread, _| !thread.alive? }
        ended.each { |thread, connections| @connections.delete(thread) && close_all(connections) }
        @connections[Thread.current] = {}.compare_by_identity
      end
    end

    # The rollback's own error is ignored: the first error is more important, and the transaction or
    # the database may be gone.
    def roll_back
      query("ROLLBACK")
    rescue Error
      nil
    end
  end
end
