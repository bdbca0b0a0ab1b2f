# frozen_string_literal: true

module Crosslane
  # The methods of a database that take rows from the program.
  class Database
    # Whether the first part of a two-part table name is a catalog, and no schema has that name.
    CATALOG = <<~SQL
      SELECT 1 FROM system.main.duckdb_databases()
      WHERE system.main.lower(database_name) = system.main.lower($1) AND NOT EXISTS (
        FROM system.main.duckdb_schemas() WHERE system.main.lower(schema_name) = system.main.lower($1)
          AND database_name = system.main.current_database())
    SQL
    # One part of a table's name, quoted or not.
    PART = /"(?:[^"]|"")+"|[^."]+/
    private_constant :CATALOG, :PART

    # Appends rows to a table, much faster than INSERT. A block that makes the rows may run queries.
    # They run on this thread's connection, and so in its transaction. They do not see the rows that
    # are being appended.
    #
    #   db.append("points", [[1, 2.0], [3, 4.0]])
    #   db.append("points") { |rows| rows << [1, 2.0] << [3, 4.0] }
    #   db.append("main.points", [[1], [3]], columns: ["id"])
    #
    # DuckDB writes the rows in steps of 204,800, and the remaining rows at the end. After an error,
    # the rows of complete steps stay in the table, and no others. Inside {#transaction}, no rows
    # stay.
    #
    # @param table [String] a name in SQL's syntax, with its schema and its catalog if necessary:
    #   "main.points", "attached.main.\"my points\""
    # @param rows [Enumerable<Array>] with {DEFAULT} for a column's default value
    # @param columns [Array<String>, nil] the columns that the rows have; the other columns get
    #   their default values
    # @yieldparam rows [Appender]
    # @return [Integer] how many rows were appended
    # @raise [Error] if a row does not fit; the message has the row's number
    def append(table, rows = nil, columns: [], &block)
      place = qualified(table)
      appender = with_connection { |connection| keep(connection.appender(*place, columns.map(&:to_s))) }
      Appender.new(appender).fill(rows, &block)
    end

    # Appends the rows of an Arrow C stream to a table, without making Ruby objects of them. It
    # appends all rows, or none if it fails. Columns of other types are cast. The columns are
    # matched by their order, not by their names.
    #
    #   db.append_arrow("points", data_frame)
    #   other.query("FROM points").arrow_stream { |address| db.append_arrow("points", address) }
    #
    # @param table [String] see {#append}
    # @param stream [#arrow_c_stream, #to_i] an object that exports a stream, or the address of a
    #   `struct ArrowArrayStream`; the stream is released in any case
    # @param columns [Array<String>] see {#append}
    # @return [Integer] how many rows were appended
    # @raise [Error] if the stream and the table have different numbers of columns, or a column
    #   cannot be cast; an error of the stream. An exception of a stream that is made in Ruby is
    #   raised unchanged
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

    # Gives rows to an INSERT, UPDATE, DELETE or MERGE INTO that reads them from `appended_data`.
    #
    #   sql = "INSERT OR REPLACE INTO prices FROM appended_data"
    #   db.append_query(sql, "(item VARCHAR, price BIGINT)", [["tea", 3]])
    #
    # The query runs once for each 204,800 rows, and once for the remaining rows. After an error,
    # the changes of the query's earlier runs stay, as in {#append}.
    #
    # @param sql [String]
    # @param signature [String] the columns of the rows
    # @param rows [Enumerable<Array>]
    # @yieldparam rows [Appender]
    # @return [Integer] how many rows were given
    # @raise [Error] if a row does not fit, with the row's number; any error of the database
    # @raise [DeclarationError] if the signature of the columns is invalid
    def append_query(sql, signature, rows = nil, &block)
      columns = Declaration.columns(signature)
      appender = with_connection { |connection| keep(connection.query_appender(sql, columns)) }
      Appender.new(appender).fill(rows, &block)
    end

    private

    # Makes an appender write all rows or none, also in a transaction of the program. On failure,
    # that transaction is aborted, as after an INSERT that fails: nothing else removes the rows that
    # were written.
    def wholly(connection, appender)
      done = false
      yield
      done = true
    ensure
      begin
        ask(connection, "SELECT system.main.error('append_arrow has failed')") if !done && appender.begun?
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

    # The catalog, the schema and the name of a table, from SQL's syntax: `points`, `main.points`,
    # `"a.b"."c d"`.
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
end
