# frozen_string_literal: true

require "crosslane/host/table"
require "crosslane/host/aggregate"

module Crosslane
  # The functions of a database: blocks of the program, and files.
  class Database
    EXTENSION = File.expand_path("../crosslane.duckdb_extension", __dir__)
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
    private_constant :EXTENSION, :TAKEN, :NAMES, :AMBIGUOUS

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

    private

    def load_extension(connection)
      file = ENV.fetch("CROSSLANE_EXTENSION", EXTENSION)
      raise Error, "there is no extension at #{file}: the gem was not built" unless File.exist?(file)

      ask(connection, "LOAD '#{file.gsub("'", "''")}'")
      # Guests in Ruby run in this very Ruby.
      ask(connection, "CALL crosslane_set('ruby', ?)", text(RbConfig.ruby))
      @extension = true
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
  end
end
