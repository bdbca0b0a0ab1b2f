# frozen_string_literal: true

require "minitest/autorun"
require "minitest/mock"
require "open3"
require "rbconfig"
require "set"
require "tmpdir"
require "timeout"
require "crosslane"

# What the tests share.
class CrosslaneTest < Minitest::Test
  # A test that hangs has failed, and the next one runs.
  LONGEST = 120
  Hangs = Class.new(Exception) # rubocop:disable Lint/InheritException -- no test rescues it
  ALONE = "CROSSLANE_TEST_ALONE"

  # Has a test run in a process of its own, with nothing of other tests on its heap and its stacks.
  def self.alone(test)
    body = instance_method(test)
    define_method(test) do
      next body.bind_call(self) if ENV.key?(ALONE)

      file, = body.source_location
      assert_match(/^1 runs/, run_alone(file, "--name", test.to_s, environment: { ALONE => "1" }))
    end
  end

  def run
    Timeout.timeout(self.class::LONGEST, Hangs, "it hangs") { super }
  end

  def open(threads: 4, path: nil, **options)
    @opened ||= []
    @opened << Crosslane.open(path, config: { threads: threads }, **options)
    @opened.last
  end

  def teardown
    @opened&.each(&:close)
  end

  # A database with a table of so many numbers, which several workers scan.
  def numbers(count = 500_000, **options)
    db = open(**options)
    db.query("CREATE TABLE numbers AS SELECT i AS x FROM range(#{count}) r(i)")
    db
  end

  def eventually(patience = 20)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + patience
    sleep 0.01 until (done = yield) || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    assert done, "it never came to pass"
  end

  # What a program prints, in a process of its own, which ends with the test.
  def run_alone(*arguments, environment: {})
    library = File.expand_path("../lib", __dir__)
    Open3.popen3(environment, RbConfig.ruby, "-I", library, *arguments) do |input, output, error, process|
      input.close
      output, error = [output, error].map { |stream| Thread.new { stream.read } }.map(&:value)
      assert_predicate process.value, :success?, [output, error].map { |text| text[-2000..] || text }.join
      output
    ensure
      Process.kill("KILL", process.pid) if process.alive?
    end
  end

  # Workers may let go of a query a moment after its end.
  def assert_no_states
    eventually do
      Crosslane::Host.forget
      Crosslane::HostAggregate.size.zero? && Crosslane::Host.lanes[:busy].zero?
    end
  end

  # Runs a block in a fork, and returns what it returns.
  def forked
    reader, writer = IO.pipe
    pid = fork do
      reader.close
      result = begin
        yield
      rescue Exception => e # rubocop:disable Lint/RescueException
        e.full_message(highlight: false)
      end
      writer.write(Marshal.dump(result))
      writer.close
      exit!(0)
    end
    writer.close
    result = reader.read
    Process.wait(pid)
    assert_predicate $?, :success?, $?.inspect
    Marshal.load(result) # rubocop:disable Security/MarshalLoad
  end
end
