# frozen_string_literal: true

require "bigdecimal"
require "date"
require "json"

# Functions in Ruby that SQL calls on every core.
#
# A file of functions (a library) declares them with {Crosslane::DSL#udf}. A program opens an
# embedded database with {Crosslane.open} and declares its own blocks as functions.
module Crosslane
end

require "crosslane/types"
require "crosslane/native"
require "crosslane/errors"
require "crosslane/declare/declaration"
require "crosslane/worker/stateful"
require "crosslane/declare/aggregate"
require "crosslane/declare/table"
require "crosslane/declare/stream"
require "crosslane/worker/runner"
require "crosslane/declare/library"

Crosslane::Native.prepare

require "crosslane/host/lanes"
require "crosslane/database/database"
require "crosslane/client"
