# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = "crosslane"
  spec.version = "0.1.0"
  spec.summary = "Functions in Ruby, called from SQL on every core; and V8 that does not freeze Ruby"
  spec.description = "Runs functions written in Ruby, Python and JavaScript from DuckDB, each worker in a lane of " \
                     "its own; embeds DuckDB in Ruby programs; boots V8 contexts without holding Ruby's lock."
  spec.authors = ["The Crosslane authors"]
  spec.license = "Apache-2.0"
  # The native parts are compiled for one Ruby.
  spec.required_ruby_version = "~> #{Gem.ruby_api_version}"
  spec.platform = Gem::Platform::CURRENT
  # It is part of Ruby until 3.3, and a gem of its own from then on.
  spec.add_dependency "bigdecimal", ">= 3.1"
  # `rake package` puts them there: the native parts are of one platform.
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*", "sig/**/*", "LICENSE"].select { |file| File.file?(file) } }
  spec.metadata["rubygems_mfa_required"] = "true"
end
