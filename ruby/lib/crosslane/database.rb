# frozen_string_literal: true

require "set"
require "crosslane/result"
require "crosslane/host_table"
require "crosslane/host_aggregate"

module Crosslane
  LIBDUCKDB = File.expand_path("libduckdb.so", __dir__)
  # DuckDB's settings under which nothing can be loaded.
  LOCKS = %w[enable_external_access lock_configuration].freeze
  private_constant :LIBDUCKDB, :LOCKS

  class << self
    # Opens a database, and closes it again behind a block.
    #
    #   db = Crosslane.open("sales.duckdb")
    #   db.udf(:slug, "(title VARCHAR) -> VARCHAR") { |title| title.downcase.tr(" ", "-") }
    #   db.query("SELECT slug(title) FROM books WHERE year > ?", 1990).each { |slug,| puts slug }
    #
    # @param path [String, nil] a file, or nil for a database in memory
    # @param functions [Array<String>] files of functions to load
    # @param config [Hash] DuckDB's settings, such as `threads: 4`; those that forbid external access or lock the
    #   configuration come into force when the functions are loaded
    # @yieldparam database [Database]
    # @raise [Error] if DuckDB refuses
    def open(path = nil, functions: [], config: {})
      locks, config = config.transform_keys(&:to_s).partition { |name, _| LOCKS.include?(name) }.map(&:to_h)
      database = Database.new(path, config)
      done = false
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
  end

  # An embedded database. Those of the same file share it, and must have the same config.
  #
  # Each thread has a connection of its own, made when it needs one, so that threads and the blocks that run in lanes
  # can all use one Database. What belongs to a connection in SQL (transactions, temporary tables, SET) belongs to the
  # thread. A query inside of a block runs on its own connection too: it sees what is committed.
  class Database
    EXTENSION = File.expand_path("crosslane.duckdb_extension", __dir__)
    # Who has a name already, among table functions or among all others, and how to drop it if it is a macro of the
    # database's own.
    TAKEN = <<~SQL
      SELECT function_type, CASE WHEN function_type LIKE '%macro' AND database_name <> 'system' THEN
        concat('DROP MACRO ', if(function_type = 'table_macro', 'TABLE ', ''), 'IF EXISTS ', list_aggregate(
          list_transform([database_name, schema_name, function_name], lambda part: '"' || replace(part, '"', '""') || '"'),
          'string_agg', '.')) END
      FROM duckdb_functions()
      WHERE lower(function_name) = ? AND starts_with(function_type, 'table') = ? AND function_type <> 'pragma'
        AND (database_name = 'system' OR database_name = current_database() AND schema_name = current_schema())
    SQL
    # Which of some names blocks may have, among table functions and among all others.
    NAMES = <<~SQL
      SELECT DISTINCT lower(function_name) AS name, starts_with(function_type, 'table') FROM duckdb_functions()
      WHERE list_contains(?::VARCHAR[], name) AND database_name = 'system' AND function_type IN
        ('scalar', 'aggregate', 'table')
    SQL
    # Whether there are two functions of a name that take the same.
    AMBIGUOUS = <<~SQL
      SELECT parameter_types FROM duckdb_functions() WHERE lower(function_name) = ?
      GROUP BY parameter_types HAVING count(*) > 1
    SQL
    # Whether a table's place is a catalog and no schema.
    CATALOG = <<~SQL
      SELECT 1 FROM duckdb_databases() WHERE lower(database_name) = lower($1) AND NOT EXISTS (
        FROM duckdb_schemas() WHERE lower(schema_name) = lower($1) AND database_name = current_database())
    SQL
    # A part of a name.
    PART = /"(?:[^"]|"")+"|[^."]+/
    # DuckDB counts what is done only for a bar, which need not be printed.
    PROGRESS = ["SET enable_progress_bar = true", "SET enable_progress_bar_print = false"].freeze
    private_constant :EXTENSION, :TAKEN, :NAMES, :AMBIGUOUS, :CATALOG, :PART, :PROGRESS
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

    # Appends rows to a table, much faster than INSERT. A block that makes them may query: on this thread's connection,
    # and so in its transaction. It does not see the rows that it is appending.
    #
    #   db.append("points", [[1, 2.0], [3, 4.0]])
    #   db.append("points") { |rows| rows << [1, 2.0] << [3, 4.0] }
    #   db.append("main.points", [[1], [3]], columns: ["id"])
    #
    # DuckDB writes the rows in steps of 204,800 and at the end. After an error those of whole steps stay, no others;
    # inside of {#transaction} none do.
    #
    # @param table [String] a name as SQL writes it, with its schema and its catalog if it needs them: "main.points",
    #   "attached.main.\"my points\""
    # @param rows [Enumerable<Array>] with {DEFAULT} for a column's default value
    # @param columns [Array<String>, nil] those that the rows have; the others get their default values
    # @yieldparam rows [Appender]
    # @return [Integer] how many rows were appended
    # @raise [Error] for a row that does not fit, by its number
    def append(table, rows = nil, columns: [], &block)
      place = qualified(table)
      appender = with_connection { |connection| keep(connection.appender(*place, columns.map(&:to_s))) }
      Appender.new(appender).fill(rows, &block)
    end

    # Appends the rows of an Arrow C stream to a table, without making Ruby objects of them: all, or none if that fails.
    # Columns that have other types are cast; the stream's are in the order of the table's, whatever their names.
    #
    #   db.append_arrow("points", data_frame)
    #   other.query("FROM points").arrow_stream { |address| db.append_arrow("points", address) }
    #
    # @param table [String] see {#append}
    # @param stream [#arrow_c_stream, #to_i] what exports one, or the address of a `struct ArrowArrayStream`; the stream
    #   is released in any case
    # @param columns [Array<String>] see {#append}
    # @return [Integer] how many rows were appended
    # @raise [Error] if the columns are not as many as the table's, or cannot be cast; what the stream says; what a
    #   stream that is made in Ruby raises, as itself
    def append_arrow(table, stream, columns: [])
      exported = stream.respond_to?(:arrow_c_stream) ? stream.arrow_c_stream : stream
      source = Native::ArrowStream.take(exported.to_i)
      place = qualified(table)
      with_connection do |connection|
        names = columns.map(&:to_s)
        known = names.empty? ? columns_of(connection, place) : names
        count = 0
        atomically(connection) do
          appender = Appender.new(keep(connection.appender(*place, names)))
          wholly(connection, appender) { count = appender.fill_from(source, known) }
        end
        count
      end
    ensure
      source&.release
    end

    # Gives rows to a query: an INSERT, UPDATE, DELETE or MERGE INTO that reads them from `appended_data`.
    #
    #   sql = "INSERT OR REPLACE INTO prices FROM appended_data"
    #   db.append_query(sql, "(item VARCHAR, price BIGINT)", [["tea", 3]])
    #
    # The query runs for each 204,800 rows, and at the end for the others. After an error what it has done stays, as in
    # {#append}.
    #
    # @param sql [String]
    # @param signature [String] the columns of the rows
    # @param rows [Enumerable<Array>]
    # @yieldparam rows [Appender]
    # @return [Integer] how many rows were given
    # @raise [Error] for a row that does not fit, by its number; what the database says
    # @raise [DeclarationError] if the columns cannot be understood
    def append_query(sql, signature, rows = nil, &block)
      columns = Declaration.columns(signature)
      appender = with_connection { |connection| keep(connection.query_appender(sql, columns)) }
      Appender.new(appender).fill(rows, &block)
    end

    # Makes a block a function of SQL, run by host lanes: threads of this very program. The block sees the program's
    # variables, files and sockets. What waits runs side by side; what computes takes turns, since Ruby
    # has one lock: such functions are quicker as a guest ({#load}). A block that has the name already is replaced.
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(x BIGINT) -> BIGINT"
    # @param replace [Boolean] whether it may take the name of a macro, which is dropped, or of a built-in function,
    #   which changes for the whole database
    # @param overload [Boolean] whether functions of the name that take other types stay beside it
    # @param options [Hash] those of {DSL#udf}, but `memory_limit`
    # @return [Declaration]
    # @raise [DeclarationError, Error]
    def udf(name, signature, replace: false, overload: false, **options, &block)
      raise DeclarationError, "udf needs a block" unless block

      declaration = declare(name, resolved(name, signature), block, options)
      define(name, replace: replace, overload: overload) do |connection|
        connection.register_scalar(Host.add(declaration), declaration.message.to_json)
      end
      declaration
    end

    # Makes a block a table function, run by host lanes. It returns anything with `each` that yields rows, as the blocks
    # of {DSL#udtf} do, and has their options.
    #
    #   db.table(:letters, "(word VARCHAR, upper BOOLEAN) -> TABLE(letter VARCHAR)") do |word, upper: false|
    #     (upper ? word.upcase : word).each_char
    #   end
    #   db.query("FROM letters('abc', upper := true)")
    #
    # With `partitions`, workers run the block for several of these, side by side; they may be any objects.
    #
    #   sitemap = ->(site) { links(site) }
    #   db.table(:pages, "(site VARCHAR) -> TABLE(url VARCHAR, size BIGINT)", partitions: sitemap) do |url, site|
    #     [[url, fetch(site, url).bytesize]]
    #   end
    #
    # With `columns`, the columns depend on the arguments.
    #
    #   header = ->(path) { CSV.open(path, &:shift).to_h { |name| [name, "VARCHAR"] } }
    #   db.table(:csv, "(path VARCHAR)", columns: header) { |path| CSV.foreach(path, headers: true).lazy.map(&:to_h) }
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(n BIGINT) -> TABLE(i BIGINT, name VARCHAR)"; with `columns` the parameters
    #   only
    # @param columns [#call, nil] is given the arguments whenever a query is planned, and returns the columns: a Hash of
    #   names and types, or a text such as "(i BIGINT, name VARCHAR)"
    # @param options [Hash] those of {DSL#udtf}, but `memory_limit`
    # @yieldparam part what the worker is to do (only with `partitions`), and then the arguments
    # @yieldreturn [#each] the rows, made when they are wanted if it is lazy
    # @raise [DeclarationError, Error]
    def table(name, signature, columns: nil, **options, &block)
      raise DeclarationError, "table needs a block" unless block

      table = HostTable.new(name, signature, block, columns, of_host(options)) { |whole| resolved(name, whole) }
      define(name, table: true) do |connection|
        functions = [table, table.deciding].map do |function|
          [Host.add(function), function.message.to_json] if function
        end
        connection.register_table(*functions)
      end
      nil
    end

    # Makes a class or a block an aggregate function, run by host lanes. Both are as those of {DSL#udaf}, and have their
    # options.
    #
    #   class Longest
    #     attr_reader :word
    #
    #     def update(word) = @word = [@word, word].compact.max_by(&:size)
    #     def merge(other) = update(other.word)
    #     def finish = @word
    #   end
    #
    #   db.aggregate(:longest, "(word VARCHAR) -> VARCHAR", Longest)
    #
    # A block is given what was accumulated so far and the arguments of a row, and returns what is accumulated then.
    #
    #   db.aggregate(:total, "(x BIGINT) -> HUGEINT", start: -> { 0 }, combine: :+.to_proc) { |sum, x| sum + x }
    #
    # @param name [Symbol, String]
    # @param signature [String] of the aggregate: the row's arguments and the result
    # @param states [Class, nil] without a block
    # @param options [Hash] those of {DSL#udaf}, but `memory_limit`
    # @raise [DeclarationError, Error]
    def aggregate(name, signature, states = nil, **options, &block)
      raise DeclarationError, "aggregate #{name} takes a class or a block" unless states.nil? ^ block.nil?

      signature = Crosslane.signature(name, resolved(name, signature))
      declared = HostAggregate.new(signature, states || block, **of_host(options))
      define(name) { |connection| connection.register_aggregate(Host.add(declared), declared.message.to_json) }
      nil
    end

    # Makes SQL forget the blocks of a name, whatever they take: functions, aggregates and table functions. The name is
    # free then. Queries that run go on with the blocks; what these hold can be collected when nothing uses them.
    #
    # Functions of files are dropped by SQL: `CALL crosslane_drop('slug')`.
    #
    # @param name [Symbol, String]
    # @raise [Error] if no block has the name (it suggests those with a similar one); if a function of DuckDB's own has
    #   it, too; if libduckdb does not export what is needed
    def drop(name)
      name = name.to_s.downcase
      with_connection do |connection|
        dropped = []
        atomically(connection) do
          blocks = blocks(connection, @names.keys.map(&:first))
          dropped = blocks.select { |known, _| known == name }
          raise Error, "there is no block #{name}; #{similar(name, blocks)}" if dropped.empty?

          dropped.each { |block| forget(connection, block) }
        end
        # The program's own transaction may still bring them back.
        dropped.each { |block| @names.delete(block) } unless transaction?(connection)
      end
      @definitions += 1
      nil
    end

    # Loads files of functions in Ruby, Python or JavaScript. They run as guests: in processes of their own, on every
    # core, and out of reach of this program.
    #
    # They have a connection of their own, so that a transaction of this thread, which cannot see what is loaded before
    # its end if it has run a query, is left alone.
    #
    # @param paths [Array<String>]
    # @param replace [Boolean] whether functions may take the names of macros, which are dropped, and of built-in
    #   functions, which change for the whole database
    # @raise [Error] if a file cannot be loaded
    def load(*paths, replace: false)
      return if paths.empty?

      Host.ensure_running
      apart do |connection|
        load_extension(connection) unless @extension
        sql = "CALL crosslane_load(?, replace := #{replace ? true : false})"
        paths.each { |path| ask(connection, sql, text(File.expand_path(path))) }
      end
      nil
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

    def load_extension(connection)
      file = ENV.fetch("CROSSLANE_EXTENSION", EXTENSION)
      raise Error, "there is no extension at #{file}: the gem was not built" unless File.exist?(file)

      ask(connection, "LOAD '#{file.gsub("'", "''")}'")
      # Guests in Ruby run in this very Ruby.
      ask(connection, "CALL crosslane_set('ruby', ?)", text(RbConfig.ruby))
      @extension = true
    end

    # The one name of a file; nil for a database in memory.
    def file(path)
      return if path.nil? || path.empty? || path == ":memory:"

      path.match?(/\A\w{2,}:|\A:/) ? path : File.realdirpath(path)
    rescue SystemCallError
      # DuckDB says why it cannot be opened.
      File.expand_path(path)
    end

    # A path as VARCHAR, whatever its encoding.
    def text(path) = path.dup.force_encoding(Encoding::UTF_8)

    # Registers a block of a name, in place of those that had it.
    def define(name, table: false, replace: false, overload: false)
      Host.ensure_running
      name = name.to_s.downcase
      block = [name, table]
      with_connection do |connection|
        atomically(connection) do
          ours = @names.key?(block) && blocks(connection, [name]).include?(block)
          alone = ours ? @names[block] : claim(connection, name, table, replace)
          forgotten = !overload && alone && connection.forget(name, table)
          yield connection
          if !forgotten && ask(connection, AMBIGUOUS, name).any?
            raise Error, "DuckDB cannot change the type of #{name}'s result; give the block another name"
          end

          @names[block] = alone
        end
      end
      @definitions += 1
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

    # Lets an appender do all or nothing, also in a transaction of the program's: that is aborted, as it is by an INSERT
    # that fails, since nothing else takes out again what was written.
    def wholly(connection, appender)
      done = false
      yield
      done = true
    ensure
      begin
        ask(connection, "SELECT error('append_arrow has failed')") if !done && appender.begun?
      rescue Error
        nil
      end
      appender.free
    end

    # The names of a table's columns.
    def columns_of(connection, place)
      name = place.compact.map { |part| "\"#{part.gsub('"', '""')}\"" }.join(".")
      ask(connection, "FROM #{name} LIMIT 0").names
    end

    # Whether the program has begun a transaction: only then are two queries in one.
    def transaction?(connection) = Array.new(2) { ask(connection, "SELECT txid_current()").first }.uniq.one?

    # The blocks that there are of these names, and whether they are table functions.
    def blocks(connection, names) = ask(connection, NAMES, names).to_a & @names.keys

    def forget(connection, (name, table))
      unless @names[[name, table]]
        raise Error, "DuckDB has a function #{name} of its own, which would be dropped with the block; close the " \
                     "database instead, or give #{name} another block"
      end
      return if connection.forget(name, table)

      raise Error, "this libduckdb cannot drop #{name}: it does not export its C++ symbols; use DuckDB's own of " \
                   "1.5.6 or 2.0.0, or give #{name} another block"
    end

    # What to do about a name that no block has.
    def similar(name, blocks)
      names = blocks.map(&:first).uniq
      similar = defined?(DidYouMean) ? DidYouMean::SpellChecker.new(dictionary: names).correct(name) : []
      return "did you mean #{similar.join(" or ")}?" if similar.any?

      names.empty? ? "this database has none" : "there are #{names.sort.join(", ")}"
    end

    # Looks whether a block may have the name; drops the macro that has it, if it is to. Whether nobody else has it.
    def claim(connection, name, table, replace)
      ask(connection, TAKEN, name, table).map do |kind, drop|
        replaceable = kind == "scalar" || drop
        raise Error, taken(name, kind, replaceable) unless replaceable && replace

        ask(connection, drop) if drop
        drop
      end.all?
    end

    def taken(name, kind, replaceable)
      kind = "function" if kind == "scalar"
      kind = kind.tr("_", " ")
      advice = replaceable ? ", or replace it: replace: true" : ""
      "the name #{name} is taken by #{kind == "aggregate" ? "an" : "a"} #{kind}; give the block another name#{advice}"
    end

    # Lends a connection that no transaction of the program's runs on.
    def apart
      raise Error, "the database is closed" if @closed

      connection = @native.connect
      begin
        yield connection
      ensure
        connection.close
      end
    end

    # A signature in which names of the database's own types are what these stand for. One that cannot be understood
    # stays as it is: the error comes when a function is declared with it.
    def resolved(name, signature)
      Native.parse_signature(Crosslane.signature(name, signature))
      signature
    rescue ArgumentError
      with_connection { |connection| connection.resolve(Crosslane.signature(name, signature)) } || signature
    end

    def declare(name, signature, block, options)
      Declaration.new(Crosslane.signature(name, signature), block, **of_host(options))
    end

    # The options of a function that runs in this process.
    def of_host(options)
      raise DeclarationError, "memory_limit is for functions in files (guests)" if options.key?(:memory_limit)

      if (part = options.keys.find { |option| %i[setup teardown].include?(option) })
        raise DeclarationError, "#{part} is for functions in files (guests): a block sees what its program has prepared"
      end

      options
    end

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

    # The catalog, the schema and the name of a table, as SQL writes them: `points`, `main.points`, `"a.b"."c d"`.
    def qualified(table)
      unless table.to_s.match?(/\A#{PART}(\.#{PART}){0,2}\z/)
        raise Error, "#{table.inspect} is not the name of a table; a part with a dot or a space is quoted: " \
                     "#{'main."my table"'.inspect}"
      end
      *place, name = table.to_s.scan(PART).map { |part| part.start_with?('"') ? part[1..-2].gsub('""', '"') : part }
      place.unshift(nil) while place.size < 2
      place.rotate! if place.first.nil? && place.last && value(CATALOG, place.last)
      [*place, name]
    end
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
