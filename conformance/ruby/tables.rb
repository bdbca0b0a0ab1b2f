# frozen_string_literal: true

# The table functions of the section `tables` of cases.json.

# Yields what the block gives.
def rows(&block) = Enumerator.new(&block)

# Numbers and their texts.
udtf "numbers(n BIGINT, step BIGINT, label VARCHAR) -> TABLE(i BIGINT, s VARCHAR)" do |n, step: 1, label: "no"|
  n.times.lazy.map { |i| [i * step, "#{label} #{i * step}"] }
end

# Plain values as rows.
udtf("singles(n BIGINT) -> TABLE(i BIGINT)", &:times)

# Columns by their places.
udtf "batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do |n|
  (0...n).each_slice(1000).lazy.map { |part| [part, part.map { |i| "no #{i}" if i % 3 != 2 }] }
end

# Columns by their names.
udtf "named_batches(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", vectorized: true do |n|
  [{ s: (0...n).map { |i| "no #{i}" }, i: [*0...n] }]
end

# Rows with the names of their columns.
udtf "by_name() -> TABLE(i BIGINT, s VARCHAR)" do
  [{ s: "first", i: 1 }, { i: 2, s: nil }]
end

# A table with partitions.
udtf "pages(n BIGINT) -> TABLE(page BIGINT, line BIGINT)", partitions: ->(n) { 0...n } do |page, n|
  n.times.map { |line| [page, line] }
end

# Rows without an end.
udtf("endless() -> TABLE(i BIGINT)") { 0.step }

# A table that fails after its rows.
udtf "fails(n BIGINT) -> TABLE(i BIGINT)" do |n|
  rows { |all| n.times { |i| all << i } && raise("no more") }
end

# The same, but errors become NULL.
udtf "ends(n BIGINT) -> TABLE(i BIGINT)", on_error: :null do |n|
  rows { |all| n.times { |i| all << i } && raise("no more") }
end

# Each second row is an error.
udtf "spotted(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)", on_error: :null do |n|
  n.times.lazy.map { |i| i.odd? ? ArgumentError.new("a spot") : [i, "good"] }
end

# The second row is an error.
udtf("refused() -> TABLE(i BIGINT, s VARCHAR)") { [[1, "good"], ArgumentError.new("a spot")] }

# The second row has too many values.
udtf("wrong() -> TABLE(i BIGINT, s VARCHAR)") { [[1, "good"], [2, "one", "too many"]] }

# The argument of its call.
udtf("sees_null(x BIGINT) -> TABLE(x BIGINT)", nulls: :call) { |x| [[x]] }

# Its arguments, and a row of NULLs.
udtf "nested(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT)) -> TABLE(l BIGINT[], s STRUCT(a VARCHAR, b BIGINT))" do |l, s|
  [[l, s], [nil, nil]]
end
