"""The guests of other languages than Python, and V8 in Ruby programs."""
