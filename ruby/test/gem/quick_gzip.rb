# frozen_string_literal: true

# RubyGems uses the best compression, because many users fetch a gem. The gem of a test is installed
# once, so fast compression is better.
require "zlib"
Zlib.send(:remove_const, :BEST_COMPRESSION)
Zlib::BEST_COMPRESSION = Zlib::BEST_SPEED
