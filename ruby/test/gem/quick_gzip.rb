# frozen_string_literal: true

# RubyGems compresses as well as it can, for all who fetch a gem. That of a test is installed once.
require "zlib"
Zlib.send(:remove_const, :BEST_COMPRESSION)
Zlib::BEST_COMPRESSION = Zlib::BEST_SPEED
