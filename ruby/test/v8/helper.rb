# frozen_string_literal: true

require_relative "../helper"
require "crosslane/v8"

# What the tests of V8 share.
class V8Test < CrosslaneTest
  V8 = Crosslane::V8

  def context(**options)
    @contexts ||= []
    @contexts << V8::Context.new(**options)
    @contexts.last
  end

  def teardown
    super
    @contexts&.each(&:dispose)
  end
end
