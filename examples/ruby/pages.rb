# frozen_string_literal: true

# A Ruby program with a database inside: SQL calls the program's own blocks, side by side, and V8 renders the result.
#
#   ruby -I ruby/lib examples/ruby/pages.rb

require "crosslane"
require "crosslane/v8"
require "socket"

# A small service on this machine, which takes its time.
SERVICE_DELAY = 0.01

def start_service
  server = TCPServer.new("127.0.0.1", 0)
  Thread.new do
    loop do
      Thread.new(server.accept) do |client|
        name = client.gets.to_s.chomp
        sleep SERVICE_DELAY
        client.puts name.sum % 5 + 1
        client.close
      end
    end
  end
  server.addr[1]
end

# Asks the service for a book's stars.
def stars(port, title)
  TCPSocket.open("127.0.0.1", port) do |socket|
    socket.puts title
    Integer(socket.gets)
  end
end

def seconds
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  result = yield
  [result, Process.clock_gettime(Process::CLOCK_MONOTONIC) - started]
end

port = start_service
calls = 0
db = Crosslane.open(config: { threads: 4 })

# Rows go in by the column, dates and all.
db.query("CREATE TABLE books (title VARCHAR, author VARCHAR, published DATE)")
appended = db.append("books") do |rows|
  500.times { |i| rows << ["Book #{i}", %w[Ada Grace Barbara][i % 3], Date.new(1950 + i % 70, 1, 1)] }
end
puts "#{appended} books"

# A scalar function: the block uses this program's socket, and its variables.
db.udf(:stars, "(title VARCHAR) -> BIGINT", retries: 2, timeout: 5) do |title|
  calls += 1
  stars(port, title)
end
rows, time = seconds { db.query("SELECT author, avg(stars(title)) FROM books GROUP BY author ORDER BY author").to_a }
rows.each { |author, mean| puts format("%-8s %.2f stars", author, mean) }
puts "#{calls} calls of #{SERVICE_DELAY} s took #{format("%.1f", time)} s: workers wait side by side"

# A table function: workers take its parts in turns.
shelves = ->(count) { (1..count) }
db.table(:shelf, "(count BIGINT) -> TABLE(shelf BIGINT, place BIGINT)", partitions: shelves) do |number, _count|
  Array.new(10) { |place| [number, place] }
end
puts "#{db.value("SELECT count(*) FROM shelf(25)")} places on 25 shelves"

# An aggregate function.
longer = ->(a, b) { [a, b].compact.max_by(&:size) }
db.aggregate(:longest, "(text VARCHAR) -> VARCHAR", combine: longer) { |so_far, text| longer.call(so_far, text) }
puts "the longest title is #{db.value("SELECT longest(title) FROM books").inspect}"

# V8 renders pages while this thread goes on: a snapshot holds what every context needs, a pool has some ready.
snapshot = Crosslane::V8::Snapshot.new(<<~JS, name: "pages.js", warm_up: "page({ title: 'x', rows: [[1, 2]] })")
  const escaped = (text) => String(text).replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
  const row = (cells) => `<tr>${cells.map((cell) => `<td>${escaped(cell)}</td>`).join("")}</tr>`;
  const page = ({ title, rows }) => `<h1>${escaped(title)}</h1><table>${rows.map(row).join("")}</table>`;
  globalThis.page = page;
JS
pool = Crosslane::V8::Pool.new(snapshot, size: 2, timeout: 1, max_memory: 100_000_000)
ticks = 0
ticker = Thread.new { loop { sleep(0.001) && ticks += 1 } }
html = pool.with { |context| context.call("page", { title: "Stars & authors", rows: rows }) }
ticker.kill
puts html[0, 60]

# What leaves a block leaves the query, as itself.
db.udf(:strict, "(title VARCHAR) -> BIGINT") { |title| title.end_with?("7") ? raise(KeyError, title) : 1 }
begin
  db.query("SELECT strict(title) FROM books")
rescue KeyError => e
  puts "#{e.class}: #{e.message[/Book/]} ... (#{e.query_error[/in row \d+ of the batch/] ? "with its row" : "without"})"
end
found = catch(:found) do
  db.udf(:search, "(title VARCHAR) -> BIGINT") { |title| title == "Book 42" ? throw(:found, title) : 0 }
  db.query("SELECT search(title) FROM books")
end
puts "found #{found}"

pool.close
db.close
