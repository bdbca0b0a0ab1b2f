# frozen_string_literal: true

require_relative "../helper"
require "open3"
require "rubygems/package"

# Builds and installs the gem, as users do.
class TestPackage < CrosslaneTest
  LONGEST = 300

  PROGRAM = <<~RUBY
    require "crosslane"
    require "crosslane/v8"
    db = Crosslane.open(functions: [ARGV.first])
    db.udf(:host, "(x BIGINT) -> BIGINT") { |x| x * 10 }
    puts db.value("SELECT guest(host(4))"), Crosslane::V8::Context.new.eval("6 * 7"), $LOADED_FEATURES.grep(/native/)
  RUBY

  def run!(environment, *command, chdir: Dir.pwd)
    output, status = Open3.capture2e(environment, *command, chdir: chdir)
    assert_predicate status, :success?, output
    output
  end

  def test_the_gem_runs_where_it_is_installed
    Dir.mktmpdir do |home|
      folder = File.expand_path("../..", __dir__)
      run!({ "RUBYOPT" => "-r#{File.join(__dir__, "quick_gzip")}" }, "rake", "package", chdir: folder)
      installed = { "GEM_HOME" => home, "RUBYLIB" => nil, "RUBYOPT" => nil }
      run!(installed, "gem", "install", "--local", "--no-document", File.join(folder, "pkg/crosslane.gem"))
      specification = Gem::Package.new(File.join(folder, "pkg/crosslane.gem")).spec
      assert specification.required_ruby_version.satisfied_by?(Gem::Version.new(RUBY_VERSION))
      refute specification.required_ruby_version.satisfied_by?(Gem::Version.new("9.0.0"))
      assert_equal Gem::Platform.local.os, specification.platform.os
      assert_equal %w[sig/crosslane.rbs sig/manifest.yaml sig/v8.rbs], specification.files.grep(/^sig/).sort
      assert_equal ["bigdecimal"], specification.runtime_dependencies.map(&:name)
      files = Dir[File.join(home, "**/{crosslane-js{,.so},*native.so,*.duckdb_extension}")]
      assert_equal 5, files.size
      shown = files.map { |file| run!({}, "readelf", "-dSW", file) }
      assert_equal ["$ORIGIN/v8"], shown.join.scan(/path: \[(.*)\]/).flatten.uniq
      refute_includes shown.join, ".symtab"
      library = File.join(Dir[File.join(home, "gems/crosslane-*")].first, "lib/crosslane")
      assert_includes File.read(File.join(library, "LICENSE")), "Apache License"
      notices = File.read(File.join(library, "THIRD_PARTY_LICENSES"), encoding: "UTF-8")
      parts = ["magnus", "libduckdb.so", "libnode108", "libicu72", "libssl3"]
      parts.each { |part| assert_match(/^==== (.*, )?#{part}/, notices) }
      functions = File.join(home, "functions.rb")
      File.write(functions, "udf(\"guest(x BIGINT) -> BIGINT\") { |x| x + 2 }")
      output = run!(installed, RbConfig.ruby, "-e", PROGRAM, functions, chdir: home).lines(chomp: true)
      assert_equal %w[42 42], output.first(2)
      assert(output.drop(2).all? { |path| path.start_with?(home) }, output.inspect)
    end
  end
end
