# frozen_string_literal: true

require "crosslane/host/table"
require "crosslane/host/aggregate"

module Crosslane
  # The methods that define functions of a database: blocks of the program, and files.
  class Database
    EXTENSION = File.expand_path("../crosslane.duckdb_extension", __dir__)
    # The functions that have a name already, either among table functions or among all others. For
    # a macro of the user's own database, also the statement that drops it.
    TAKEN = <<~SQL
      SELECT function_type, CASE WHEN function_type IN ('macro', 'table_macro') AND database_name <> 'system' THEN
        system.main.concat('DROP MACRO ', CASE WHEN function_type = 'table_macro' THEN 'TABLE ' ELSE '' END,
          'IF EXISTS "', system.main.replace(database_name, '"', '""'), '"."',
          system.main.replace(schema_name, '"', '""'), '"."', system.main.replace(function_name, '"', '""'), '"') END
      FROM system.main.duckdb_functions()
      WHERE system.main.lower(function_name) = ? AND system.main.starts_with(function_type, 'table') = ?
        AND function_type <> 'pragma' AND (database_name = 'system'
          OR database_name = system.main.current_database() AND schema_name = system.main.current_schema())
    SQL
    # Which of some names may belong to blocks, and whether each is a table function.
    NAMES = <<~SQL
      SELECT DISTINCT system.main.lower(function_name) AS name, system.main.starts_with(function_type, 'table')
      FROM system.main.duckdb_functions() WHERE system.main.list_contains(?::VARCHAR[], name) AND database_name = 'system' AND function_type IN
        ('scalar', 'aggregate', 'table')
    SQL
    # Whether two functions of a name take the same parameter types.
    AMBIGUOUS = <<~SQL
      SELECT parameter_types FROM system.main.duckdb_functions() WHERE system.main.lower(function_name) = ?
      GROUP BY parameter_types HAVING system.main.count(parameter_types) > 1
    SQL
    # Whether the database keeps definitions of functions.
    KEPT = <<~SQL
      SELECT 1 FROM system.main.duckdb_tables() WHERE schema_name = 'crosslane' AND table_name = 'definitions'
    SQL
    # The options of functions that have processes of their own.
    OF_FILES = [:memory_limit, :workers, :gpus, :cache, *Declaration::SANDBOX].freeze
    private_constant :EXTENSION, :TAKEN, :NAMES, :AMBIGUOUS, :KEPT, :OF_FILES

    # Makes a block a function of SQL. Host lanes run it: threads of this program. The block can use
    # the program's variables, files and sockets. Blocks that wait run in parallel. Blocks that
    # compute take turns, since Ruby has one lock: such functions are faster as a guest ({#load}).
    # An earlier block of the same name is replaced.
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(x BIGINT) -> BIGINT"
    # @param replace [Boolean] whether the block may take the name of a macro or of a built-in
    #   function; the macro is dropped, and the built-in function is replaced in the whole database
    # @param overload [Boolean] whether functions of the same name with other parameter types are
    #   kept
    # @param options [Hash] those of {DSL#udf}, except `memory_limit`
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

    # Makes a block a table function. Host lanes run it. It returns any object with `each` that
    # yields rows, as the blocks of {DSL#udtf} do, and has the same options.
    #
    #   db.table(:letters, "(word VARCHAR, upper BOOLEAN) -> TABLE(letter VARCHAR)") do |word, upper: false|
    #     (upper ? word.upcase : word).each_char
    #   end
    #   db.query("FROM letters('abc', upper := true)")
    #
    # With `partitions`, the block runs once for each object of a list, on several lanes in
    # parallel. The objects may be of any class.
    #
    #   sitemap = ->(site) { links(site) }
    #   db.table(:pages, "(site VARCHAR) -> TABLE(url VARCHAR, size BIGINT)", partitions: sitemap) do |url, site|
    #     [[url, fetch(site, url).bytesize]]
    #   end
    #
    # With `columns`, the columns of the result depend on the arguments.
    #
    #   header = ->(path) { CSV.open(path, &:shift).to_h { |name| [name, "VARCHAR"] } }
    #   db.table(:csv, "(path VARCHAR)", columns: header) { |path| CSV.foreach(path, headers: true).lazy.map(&:to_h) }
    #
    # @param name [Symbol, String]
    # @param signature [String] such as "(n BIGINT) -> TABLE(i BIGINT, name VARCHAR)"; with
    #   `columns`, only the parameters
    # @param columns [#call, nil] gets the arguments each time a query is planned, and returns the
    #   columns: a Hash of names and types, or a text such as "(i BIGINT, name VARCHAR)"
    # @param options [Hash] those of {DSL#udtf}, except `memory_limit`
    # @yieldparam part the partition (only with `partitions`); the arguments follow
    # @yieldreturn [#each] the rows; a lazy enumerator makes each row when it is needed
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

    # Makes a class or a block an aggregate function. Host lanes run it. The class or block is the
    # same as for {DSL#udaf}, and has the same options.
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
    # A block gets the accumulated value and the arguments of a row, and returns the new accumulated
    # value.
    #
    #   db.aggregate(:total, "(x BIGINT) -> HUGEINT", start: -> { 0 }, combine: :+.to_proc) { |sum, x| sum + x }
    #
    # @param name [Symbol, String]
    # @param signature [String] the row's arguments and the result
    # @param states [Class, nil] the class of the states; nil with a block
    # @param options [Hash] those of {DSL#udaf}, except `memory_limit`
    # @raise [DeclarationError, Error]
    def aggregate(name, signature, states = nil, **options, &block)
      raise DeclarationError, "aggregate #{name} takes a class or a block" unless states.nil? ^ block.nil?

      signature = Crosslane.signature(name, resolved(name, signature))
      declared = HostAggregate.new(signature, states || block, **of_host(options))
      define(name) { |connection| connection.register_aggregate(Host.add(declared), declared.message.to_json) }
      nil
    end

    # Removes all blocks of a name from SQL: functions, aggregates and table functions. The name is
    # free afterwards. Running queries can still call the blocks. Ruby can collect the objects that
    # the blocks reference when no query uses them.
    #
    # SQL drops functions of files: `CALL crosslane_drop('slug')`.
    #
    # @param name [Symbol, String]
    # @raise [Error] if no block has the name (the message suggests similar names); if a function of
    #   DuckDB also has the name; if libduckdb does not export the necessary symbols
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
        # If the program has a transaction, its rollback may restore the functions.
        dropped.each { |block| @names.delete(block) } unless transaction?(connection)
      end
      @definitions += 1
      nil
    end

    # Loads files of functions in Ruby, Python or JavaScript. They run as guests: in their own
    # processes, on every core, and without access to this program.
    #
    # The load uses a connection of its own and leaves this thread's transaction alone. That
    # transaction may not see the loaded functions before it ends, if it has already run a query.
    #
    # @param paths [Array<String>]
    # @param replace [Boolean] whether the functions may take the names of macros and of built-in
    #   functions; the macros are dropped, and the built-in functions are replaced in the whole
    #   database
    # @raise [Error] if a file cannot be loaded
    def load(*paths, replace: false)
      return if paths.empty?

      Host.ensure_running
      apart do |connection|
        load_extension(connection) unless @extension
        sql = "CALL system.main.crosslane_load(?, replace := #{replace ? true : false})"
        paths.each { |path| ask(connection, sql, text(File.expand_path(path))) }
      end
      nil
    end

    # Loads the functions that the database keeps, from CREATE FUNCTION. Warns of those that stay
    # unknown, because they cannot be loaded or this user does not trust them.
    #
    # @api private
    def restore
      Host.ensure_running
      restored = apart do |connection|
        next [] if ask(connection, KEPT).none?

        load_extension(connection) unless @extension
        ask(connection, "CALL system.main.crosslane_restore()").to_a
      end
      restored.select(&:last).group_by(&:last).each do |error, functions|
        warn("functions that this database defines were not loaded (#{functions.map(&:first).join(", ")}): #{error}")
      end
    end

    private

    def load_extension(connection)
      file = ENV.fetch("CROSSLANE_EXTENSION", EXTENSION)
      raise Error, "there is no extension at #{file}: the gem was not built" unless File.exist?(file)

      ask(connection, "LOAD '#{file.gsub("'", "''")}'")
      # Ruby guests run in the same Ruby as this program.
      ask(connection, "CALL system.main.crosslane_set('ruby', ?)", text(RbConfig.ruby))
      @extension = true
    end

    # A path as a VARCHAR, whatever its encoding.
    def text(path) = path.dup.force_encoding(Encoding::UTF_8)

    # Registers a block under a name, and replaces earlier blocks of that name.
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

    # The blocks that have these names, each with whether it is a table function.
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

    # The advice for a name that no block has: similar names.
    def similar(name, blocks)
      names = blocks.map(&:first).uniq
      similar = defined?(DidYouMean) ? DidYouMean::SpellChecker.new(dictionary: names).correct(name) : []
      return "did you mean #{similar.join(" or ")}?" if similar.any?

      names.empty? ? "this database has none" : "there are #{names.sort.join(", ")}"
    end

    # Checks whether a block may take the name, and drops a macro of that name if `replace` allows
    # it. Returns whether no other function has the name.
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

    # Lends a connection without a transaction of the program.
    def apart
      raise Error, "the database is closed" if @closed

      connection = @native.connect
      begin
        yield connection
      ensure
        connection.close
      end
    end

    # A signature in which names of the database's own types are replaced by their definitions. An
    # invalid signature is returned unchanged: the declaration of the function raises the error.
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
      if (of_files = options.keys.find { |name| OF_FILES.include?(name) })
        raise DeclarationError, "#{of_files} is for functions in files (guests)"
      end

      if (part = options.keys.find { |option| %i[setup teardown].include?(option) })
        raise DeclarationError, "#{part} is for functions in files (guests): a block sees what its program has prepared"
      end

      options
    end
  end
end
