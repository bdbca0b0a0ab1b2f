# frozen_string_literal: true

require "bigdecimal"
require "date"
require "json"

# Functions in Ruby, called from SQL on every core.
#
# A file of functions (a library) declares them with {Crosslane::DSL#udf}; a program embeds a database with
# {Crosslane.open} and gives it blocks of its own.
module Crosslane
end

require "crosslane/types"
require "crosslane/weak_set"
require "crosslane/native"
require "crosslane/errors"
require "crosslane/declaration"
require "crosslane/stateful"
require "crosslane/aggregate"
require "crosslane/table"
require "crosslane/stream"
require "crosslane/runner"
require "crosslane/library"

Crosslane::Native.prepare

require "crosslane/host"
require "crosslane/database"
require "crosslane/client"
