# frozen_string_literal: true

require_relative "../helper"
require "open3"

# Runs the example program, as a user does.
class TestExample < CrosslaneTest
  ROOT = File.expand_path("../../..", __dir__)

  def test_pages
    command = [RbConfig.ruby, "-I", File.join(ROOT, "ruby/lib"), File.join(ROOT, "examples/ruby/pages.rb")]
    output, error, status = Open3.capture3(*command)
    assert_predicate status, :success?, error
    ["500 books", "Ada      2.93 stars", "500 calls of 0.01 s took", "250 places on 25 shelves",
     "the longest title is \"Book 1", "<h1>Stars &amp; authors</h1><table><tr><td>Ada</td>",
     "KeyError: Book ... (with its row)", "found Book 42"].each { |line| assert_includes output, line }
  end
end
