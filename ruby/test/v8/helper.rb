# frozen_string_literal: true

require_relative "../helper"
require "crosslane/v8"

# The common part of the tests of V8.
class V8Test < CrosslaneTest
  V8 = Crosslane::V8

  def context(**options)
    @contexts ||= []
    @contexts << V8::Context.new(**options)
    @contexts.last
  end

  def snapshot(...) = V8::Snapshot.new(...)

  def teardown
    super
    @contexts&.each(&:dispose)
  end
end
