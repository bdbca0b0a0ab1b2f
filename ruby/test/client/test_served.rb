# frozen_string_literal: true

require_relative "../helper"
require "fileutils"

# Calls a server's functions without a database.
class TestServed < CrosslaneTest
  SERVER = File.expand_path("../../../python/crosslane/crosslane-server", __dir__)
  FUNCTIONS = <<~'RUBY'
    # The first letters of a name.
    udf "initials(name VARCHAR) -> VARCHAR" do |name|
      name.split.map { |word| word[0] }.join
    end

    udf "plus(x BIGINT, y BIGINT) -> BIGINT" do |x, y| x + y end

    udf "joined(first VARCHAR, *rest VARCHAR) -> VARCHAR" do |first, *rest| first + rest.join end

    udf "kind_of(x ANY) -> VARCHAR" do |x| x.class.name end

    udf "fails(x BIGINT) -> BIGINT" do |x|
      raise IndexError, "three" if x == 3

      x
    end

    udf "late(seconds DOUBLE) -> DOUBLE", timeout: 0.4 do |seconds| sleep(seconds) && seconds end

    udf "sleeps(begun VARCHAR, seconds DOUBLE) -> DOUBLE" do |begun, seconds|
      File.write("#{begun}/#{Process.pid}", "")
      sleep(seconds) && seconds
    end

    udtf "words(text VARCHAR) -> TABLE(word VARCHAR, size BIGINT)" do |text|
      text.split.map { |word| [word, word.size] }
    end

    udtf "numbers(n BIGINT, step BIGINT) -> TABLE(i BIGINT)" do |n, step: 1|
      0.step(by: step).first(n)
    end

    udtf "pages(n BIGINT) -> TABLE(page BIGINT)", partitions: ->(n) { 0...n } do |page, _n| [[page]] end

    udaf "total(x BIGINT) -> BIGINT", start: -> { 0 }, combine: ->(a, b) { a + b } do |sum, x| sum + x end

    udtf "endless() -> TABLE(i BIGINT)" do 0.step end

    udtf "halves(numbers TABLE(n BIGINT, name VARCHAR)) -> TABLE(half BIGINT, name VARCHAR)" do |rows|
      rows.select { |row| row.n.even? }.map { |row| [row.n / 2, row.name] }
    end

    udtf "picky(numbers TABLE(n BIGINT)) -> TABLE(n BIGINT)" do |rows|
      rows.each { |row| raise IndexError, "seven" if row.n == 7 }
    end

    udtf "waits(paths TABLE(begun VARCHAR)) -> TABLE(i BIGINT)" do |rows|
      File.write("#{rows.first.begun}/#{Process.pid}", "")
      sleep
    end

    udtf "bad(n BIGINT) -> TABLE(i BIGINT)" do |n| raise IndexError, "no rows" end
  RUBY

  def setup
    @folder = Dir.mktmpdir
    @address = "crosslane+unix://#{@folder}/crosslane.sock"
    @begun = File.join(@folder, "begun")
    Dir.mkdir(@begun)
    serve(FUNCTIONS)
  end

  def teardown
    stop
    FileUtils.rm_rf(@folder)
    super
  end

  def serve(functions, **options)
    file = File.join(@folder, "functions.rb")
    File.write(file, functions)
    told = {
      files: [file], listen: [@address], workers: 2, connections: 64, largest_batch: 1 << 28, drain: 5, **options
    }
    @input, @output, @server = Open3.popen2(SERVER, err: File::NULL)
    @input.write(told.to_json)
    @input.close
    assert_match(/^serving \d+ functions at/, @output.gets)
  end

  def stop(signal = "TERM")
    Process.kill(signal, @server.pid)
    @server.value
    @output.close
  rescue Errno::ESRCH, IOError
    # The server was stopped before.
  end

  def client(**options, &block) = Crosslane::Client.open(@address, **options, &block)

  def await_begin = eventually(60) { Dir.children(@begun).any? }

  def test_functions_are_described
    client do |client|
      initials = client.functions["initials"]
      assert_equal ["initials(name VARCHAR) -> VARCHAR", :scalar], [initials.signature, initials.kind]
      assert_equal "The first letters of a name.", initials.description
      assert_equal [File.join(@folder, "functions.rb"), 2], [File.realpath(initials.file), initials.line]
      assert_equal :table, client.functions["words"].kind
      assert_equal "#<Crosslane::Client #{@address}>", client.inspect
    end
  end

  def test_calls
    client do |client|
      assert_equal "AB", client.call(:initials, "Ada Byron")
      assert_equal "AB", client.call("INITIALS", name: "Ada Byron")
      assert_equal [3, 3, nil], [client.call(:plus, 1, 2), client.call(:plus, 1, y: 2), client.call(:plus, nil, 2)]
      assert_equal %w[a abc], [client.call(:joined, "a"), client.call(:joined, "a", "b", "c")]
      kinds = [1, 1 << 70, 1.5, "a", true, Date.new(2000)].map { |value| client.call(:kind_of, value) }
      assert_equal %w[Integer Integer Float String TrueClass Date], kinds
      assert_equal ["AB", nil, "C"], client.call_batch(:initials, ["Ada Byron", nil, "C"])
      assert_equal [], client.call_batch(:plus, [], [])
      assert_equal (0...100_000).map { |i| i + 1 }, client.call_batch(:plus, [*0...100_000], y: [1] * 100_000)
      assert_equal %w[ace bdf], client.call_batch(:joined, %w[a b], %w[c d], %w[e f])
      assert_equal ["Float", nil], client.call_batch(:kind_of, [1.5, nil])
    end
  end

  def test_functions_of_a_file_that_changes
    stop
    serve(FUNCTIONS, watch: true)
    client do |client|
      assert_equal 3, client.call(:plus, 1, 2)
      file = File.join(@folder, "functions.rb")
      File.write("#{file}.new", <<~RUBY)
        udf "times(x BIGINT) -> BIGINT" do |x| x * 2 end
        udf "thrice(x BIGINT) -> BIGINT" do |x| x * 3 end
        udf "plus(x BIGINT, y BIGINT) -> BIGINT" do |x, y| x + y + 1 end
      RUBY
      File.rename("#{file}.new", file)
      eventually(60) { client.functions.keys == %w[times thrice plus] }
      assert_equal [4, 6], [client.call(:plus, 1, 2), client.call(:thrice, 2)]
      assert_raises(ArgumentError) { client.call(:initials, "Ada Byron") }
    end
  end

  def test_wrong_arguments
    client do |client|
      {
        -> { client.call(:plus, 1) } => [ArgumentError, /the argument y is missing: plus\(x BIGINT/],
        -> { client.call(:plus, 1, 2, 3) } => [ArgumentError, /1 argument\(s\) too many/],
        -> { client.call(:plus, 1, x: 2) } => [ArgumentError, /x is given twice, or is no parameter/],
        -> { client.call(:plus, 1, "a") } => [TypeError, /plus: y: .*"a" where BIGINT is due/],
        -> { client.call(:plus, 1, 1 << 70) } => [RangeError, /plus: y: .*BIGINT/],
        -> { client.call_batch(:plus, [1, 2], [1, :b]) } => [TypeError, /plus: y of row 2: .*BIGINT/],
        -> { client.call_batch(:plus, [1, 2], [1]) } => [ArgumentError, /columns of 1 and 2 rows/],
        -> { client.call_batch(:plus, 1, 2) } => [TypeError, /a column is an Array, not Integer/],
        -> { client.call(:kind_of, Object.new) } => [TypeError, /a Object is no argument/],
        -> { client.call(:nothing) } => [ArgumentError, /has no function nothing; it has initials, plus/],
        -> { client.call(:words, "a") } => [ArgumentError, /words is of the kind table: use scan/],
        -> { client.call(:halves, 1) } => [ArgumentError, /halves is of the kind stream: use map/],
        -> { client.map([], :words) } => [ArgumentError, /words is of the kind table: use scan/],
        -> { client.map(1, :halves) } => [TypeError, /map reads what has each, not Integer/],
        -> { client.map([], :halves, depth: 0) } => [ArgumentError, /depth is a whole number from 1 to 64, not 0/],
        -> { client.map([], :halves, lanes: 0) } => [ArgumentError, /lanes is a whole number from 1 to 1024, not 0/],
        -> { client.map([[1, 2]], :halves).to_a } => [TypeError, /halves: numbers of row 1: .*2 where VARCHAR is due/],
        -> { client.map([[1, "a"], [2]], :halves).to_a } => [TypeError, /halves: numbers of row 2: /],
        -> { client.scan(:plus, 1, 2) } => [ArgumentError, /plus is of the kind scalar: use call or call_batch/],
        -> { Crosslane::Client.new("ftp://host") } => [ArgumentError, %r{ftp://host}],
        -> { Crosslane::Client.new(@address, lanes: 0) } => [ArgumentError, /from 1 to 1024, not 0/]
      }.each do |use, (type, message)|
        assert_match(message, assert_raises(type, &use).message)
      end
      assert_equal 3, client.call(:plus, 1, 2)
    end
  end

  def test_errors_are_those_of_local_lanes
    client do |client|
      error = assert_raises(Crosslane::Error) { client.call_batch(:fails, [1, 2, 3]) }
      lines = error.message.lines(chomp: true)
      assert_equal ["fails: IndexError: three", "  in row 3 of the batch, with x = 3"], lines.values_at(0, -1)
      assert_match(/  at .*functions\.rb:\d+ in /, lines[1])
      error = assert_raises(Crosslane::Error) { client.call(:late, 600.0) }
      assert_match(/late: timed out after 0\.4 s/, error.message)
      error = assert_raises(Crosslane::Error) { client.scan(:bad, 1).to_a }
      assert_match(/bad: IndexError: no rows/, error.message)
      assert_equal 2, client.call(:fails, 2)
    end
  end

  def test_tables
    client(lanes: 1) do |client|
      assert_equal [["a", 1], ["bc", 2]], client.scan(:words, "a bc").to_a
      assert_equal [[[0], [1]], [[0], [5]]], [client.scan(:numbers, 2).to_a, client.scan(:numbers, 2, step: 5).to_a]
      assert_equal [[0], [1], [2]], client.scan(:pages, 3).sort
      # The client can call functions while it reads a table.
      called = client.scan(:words, "A B").map { |word, _| client.call(:initials, word) }
      assert_equal %w[A B], called
      endless = client.scan(:endless)
      assert_equal [[0], [1], [2]], endless.first(3)
      endless.close
      assert_empty endless.to_a
      assert_equal 3, client.call(:plus, 1, 2)
    end
  end

  def test_streams
    client do |client|
      rows = Enumerator.new { |all| 10_000.times { |n| all << [n, "n#{n}"] } }
      expected = Array.new(5000) { |half| [half, "n#{2 * half}"] }
      assert_equal expected, client.map(rows, :halves).to_a
      assert_equal expected, client.map(rows, "HALVES", ordered: false, depth: 1, lanes: 1).sort
      given = [{ n: 2, name: "a" }, { "name" => nil, "n" => 4 }, Struct.new(:n, :name).new(6, "c")]
      assert_equal [[1, "a"], [2, nil], [3, "c"]], client.map(given, :halves).to_a
      assert_empty client.map([], :halves).to_a
      # The client can call functions while it reads a stream, and take rows one by one.
      sums = client.map([[2, "a"], [4, "b"]], :halves).map { |half, _| client.call(:plus, half, 1) }
      assert_equal [2, 3], sums
      one_by_one = client.map(rows, :halves).each
      assert_equal [[0, "n0"], [1, "n2"]], [one_by_one.next, one_by_one.next]
    end
  end

  # The reader is read while results are taken, and only a limited number of rows ahead.
  def test_a_stream_reads_only_so_far_ahead
    client(lanes: 2) do |client|
      read = 0
      endless = Enumerator.new { |all| loop { all << [2 * (read += 1), "x" * 1000] } }
      taken = client.map(endless, :halves).first(3)
      assert_equal [1, 2, 3], taken.map(&:first)
      most = read
      assert_operator most, :<, 100_000
      client.map(endless, :halves).lazy.map { |half, _| half }.first(20_000)
      assert_operator read, :<, most + 120_000
    end
  end

  def test_streams_end_however_they_are_left
    client(lanes: 1) do |client|
      endless = Enumerator.new { |all| 0.step(by: 2) { |n| all << [n, "a"] } }
      stream = client.map(endless, :halves)
      stream.each { |half, _| break if half == 10 }
      assert_match(/read or closed before/, assert_raises(Crosslane::Error) { stream.first }.message)
      assert_raises(IndexError) { client.map(endless, :halves).each { |half, _| raise IndexError if half == 10 } }
      assert_equal(7, catch(:out) { client.map(endless, :halves).each { |half, _| throw :out, half if half == 7 } })
      closed = client.map(endless, :halves)
      error = assert_raises(Crosslane::Error) { closed.each { closed.close } }
      assert_equal "the stream was closed", error.message
      unread = client.map(endless, :halves)
      2.times { unread.close }
      assert_raises(Crosslane::Error) { unread.to_a }
      # An exception of the reader also ends the stream.
      failing = Enumerator.new { |_| raise KeyError, "no rows" }
      assert_raises(KeyError) { client.map(failing, :halves).to_a }
      error = assert_raises(Crosslane::Error) { client.map((1..9).map { |n| [n] }, :picky).to_a }
      assert_match(/picky, batch 1: IndexError: seven/, error.message)
      # When a thread is killed, its worker is given back.
      killed = Thread.new { client.map([[@begun]], :waits).to_a }
      await_begin
      assert killed.kill.join(30)
      assert_equal 3, client.call(:plus, 1, 2)
    end
  end

  def test_a_stream_whose_client_or_server_goes
    closed = client(lanes: 1)
    reading = Thread.new { assert_raises(Crosslane::Error) { closed.map([[@begun]], :waits).to_a }.message }
    await_begin
    closed.close
    assert_equal "the client was closed", reading.value
    Dir.children(@begun).each { |name| File.delete(File.join(@begun, name)) }
    client(lanes: 1) do |client|
      reading = Thread.new { assert_raises(Crosslane::Error) { client.map([[@begun]], :waits).to_a }.message }
      await_begin
      stop("KILL")
      assert_match(/waits, batch 1: the server at .* closed the connection/, reading.value)
    end
  end

  def test_aggregates
    client do |client|
      assert_equal [6, 0], [client.aggregate(:total, [1, nil, 5]), client.aggregate("TOTAL", x: [])]
      by = { "b" => 9, nil => 18, "a" => 4 }
      assert_equal by.to_a, client.aggregate(:total, [1, 2, 4, 8, 16], by: ["b", nil, "a", "b", nil]).to_a
      assert_equal({}, client.aggregate(:total, [], by: []))
      error = assert_raises(ArgumentError) { client.aggregate(:total, [1, 2], by: [1]) }
      assert_match(/columns of 1 and 2 rows/, error.message)
      error = assert_raises(ArgumentError) { client.call(:total, 1) }
      assert_match(/total is of the kind aggregate: use aggregate/, error.message)
    end
  end

  def test_threads_share_a_client
    client(lanes: 2) do |client|
      sums = Array.new(16) { |i| Thread.new { Array.new(50) { |j| client.call(:plus, i, j) } } }.map(&:value)
      assert_equal Array.new(16) { |i| Array.new(50) { |j| i + j } }, sums
    end
  end

  def test_an_exception_from_another_thread_ends_a_call
    client(lanes: 1) do |client|
      calls = Thread.new do
        client.call(:sleeps, @begun, 600.0)
      rescue IndexError => e
        [e.message, client.call(:plus, 1, 2)]
      end
      await_begin
      # Other calls run meanwhile, or wait in the queue.
      waits = Thread.new { client.call(:plus, 2, 2) }
      calls.raise(IndexError, "enough")
      assert_equal ["enough", 3], calls.value
      assert_equal 4, waits.value
      assert_raises(Timeout::Error) { Timeout.timeout(0.2) { client.call(:sleeps, @begun, 600.0) } }
      killed = Thread.new { client.call(:sleeps, @begun, 600.0) }
      eventually { killed.stop? }
      assert killed.kill.join(30)
      assert_equal 3, client.call(:plus, 1, 2)
    end
  end

  def test_close_ends_calls
    client = self.client(lanes: 1)
    scan = client.scan(:endless)
    assert_equal [[0]], scan.first(1)
    calls = Array.new(2) do
      Thread.new { assert_raises(Crosslane::Error) { client.call(:sleeps, @begun, 600.0) }.message }
    end
    await_begin
    2.times { client.close }
    calls.each { |call| assert_match(/\Athe client (is|was) closed\z/, call.value) }
    uses = [-> { client.call(:plus, 1, 2) }, -> { client.scan(:words, "a") }, -> { scan.to_a }]
    uses.each { |use| assert_match(/the client (is|was) closed/, assert_raises(Crosslane::Error, &use).message) }
  end

  def test_a_fork_needs_a_client_of_its_own
    client do |client|
      assert_equal 3, client.call(:plus, 1, 2)
      said = forked do
        error = assert_raises(Crosslane::Error) { client.call(:plus, 1, 2) }
        client.close
        [error.message, self.client { |own| own.call(:plus, 1, 2) }]
      end
      assert_equal ["this process was forked after the client had connected; it needs a client of its own", 3], said
      assert_equal 3, client.call(:plus, 1, 2)
    end
  end

  def test_a_program_ends_with_an_open_client
    output = run_alone("-r", "crosslane", "-e", <<~RUBY)
      client = Crosslane::Client.new(#{@address.dump})
      scan = client.scan(:endless)
      scan.first(1)
      Thread.new { client.call(:sleeps, #{@begun.dump}, 600.0) }
      sleep 0.01 until Dir.children(#{@begun.dump}).any?
      print client.call(:plus, 1, 2)
    RUBY
    assert_equal "3", output
  end

  def test_clients_without_references_are_closed
    connections = -> { File.readlines("/proc/net/unix").count { |line| line.include?(@folder) } }
    before = connections.call
    5.times { client.call(:plus, 1, 2) }
    eventually do
      GC.start
      connections.call <= before + 2
    end
  end

  def test_a_server_that_comes_back_is_found
    client do |client|
      assert_equal 3, client.call(:plus, 1, 2)
      stop("KILL")
      FileUtils.rm_f("#{@folder}/crosslane.sock")
      error = assert_raises(Crosslane::Error) { client.call(:plus, 1, 2) }
      assert_match(/cannot connect to crosslane\+unix/, error.message)
      serve(FUNCTIONS)
      assert_equal 3, client.call(:plus, 1, 2)
      stop
      serve("udf 'plus(x BIGINT) -> BIGINT' do |x| x end")
      error = assert_raises(Crosslane::Error) { client.call(:plus, 1, 2) }
      assert_match(/have changed since .*make a new client/, error.message)
    end
  end

  def test_a_token_is_asked_for
    stop
    serve(FUNCTIONS, token: "secret")
    assert_match(/refused/, assert_raises(Crosslane::Error) { client(token: "other") }.message)
    assert_equal(3, client(token: "secret") { |client| client.call(:plus, 1, 2) })
  end

  def test_the_page_of_the_server
    page = File.read(File.expand_path("../../../docs/server.md", __dir__))
    (program,) = page.scan(/^```ruby\n(.*?)^```$/m).flatten
    program = program.sub("crosslane+unix:///run/user/1000/words.sock", @address)
    assert_equal <<~OUTPUT, run_alone("-e", program)
      "initials(name VARCHAR) -> VARCHAR"
      "AB"
      ["AB", nil]
      "a"
      "b"
      "c"
    OUTPUT
  end
end
