# Ways out of a sandbox, as in ways_by_files.py.

require "json"
require "socket"
require "open3"
require "net/http"
require "fiddle"
require "etc"

WAYS = {}

# There is nothing to find.
Refused = Class.new(StandardError)
LIBC = Fiddle.dlopen(nil)

def way(name, &block) = WAYS[name] = block

# A system call, by its numbers on x86-64 and arm64.
def system_call(x86, arm, *arguments)
  number = RUBY_PLATFORM.include?("x86_64") ? x86 : arm
  function = Fiddle::Function.new(LIBC["syscall"], [Fiddle::TYPE_LONG] * (1 + 6), Fiddle::TYPE_LONG)
  done = function.call(number, *arguments, *([0] * (6 - arguments.size)))
  raise SystemCallError.new("system call", Fiddle.last_error) if done.negative?

  done
end

way("read a file") { |place| File.read(place["secret"]) }
way("read the database") { |place| File.binread(place["database"]) }
way("read a file beside the library") { |_| File.read("#{__dir__}/data.csv") }
way("read through a link") { |place| File.read(place["link"]) }
way("read with IO") { |place| IO.readlines(place["secret"]) }
way("read by a descriptor") { |place| IO.new(IO.sysopen(place["secret"])).read }
way("copy a file") { |place| IO.copy_stream(place["secret"], "#{place["folder"]}/copied") }
way("list a folder") { |place| Dir.children(place["folder"]) }
way("find files") { |place| Dir.glob("#{place["folder"]}/*").first or raise Refused }
way("list the root") { |_| Dir.children("/") }
way("read the users") { |_| File.read("/etc/passwd") }
way("find a user") { |_| Etc.passwd or raise Refused }
way("make a file") { |place| File.write("#{place["folder"]}/new", "x") }
way("append to a file") { |place| File.write(place["victim"], "x", mode: "a") }
way("append to the library") { |_| File.write(__FILE__, "\n", mode: "a") }
way("shorten a file") { |place| File.truncate(place["victim"], 3) }
way("shorten a file when it is opened") { |place| File.open(place["victim"], File::RDONLY | File::TRUNC).close }
way("delete a file") { |place| File.unlink(place["deleted"]) }
way("delete a folder") { |place| Dir.rmdir(place["empty"]) }
way("make a folder") { |place| Dir.mkdir("#{place["folder"]}/made") }
way("rename a file") { |place| File.rename(place["moved"], "#{place["moved"]}.moved") }
way("link a file") { |place| File.link(place["secret"], "#{place["folder"]}/hard") }
way("link by name") { |place| File.symlink(place["secret"], "#{place["folder"]}/soft") }
way("make a pipe with a name") { |place| File.mkfifo("#{place["folder"]}/pipe") }
way("change a mode") { |place| File.chmod(0o600, place["victim"]) }
way("change an owner") { |place| File.chown(Process.uid, Process.gid, place["victim"]) }
way("change a time") { |place| File.utime(Time.now, Time.now, place["victim"]) }
way("environment of the engine") { |place| File.read("/proc/#{place["engine"]}/environ") }
way("map of the engine") { |place| File.read("/proc/#{place["engine"]}/maps") }
way("command of the engine") { |place| File.read("/proc/#{place["engine"]}/cmdline") }
way("files of the engine") { |place| Dir.children("/proc/#{place["engine"]}/fd") }
way("list of processes") { |_| Dir.children("/proc") }
way("signal to the engine") { |place| Process.kill(0, place["engine"]) }
way("signal to another") { |place| Process.kill(0, place["other"]) }
way("signal to all") { |_| Process.kill(0, -1) }
way("priority of the engine") { |place| Process.setpriority(Process::PRIO_PROCESS, place["engine"], 0) }
way("open the engine") { |place| system_call(434, 434, place["engine"], 0) }
way("environment") { |_| ENV["CROSSLANE_TEST_SECRET"] or raise Refused }
way("environment of the zygote") { |_| File.read("/proc/#{Process.ppid}/environ")[/CROSSLANE_TEST_SECRET/] or raise Refused }
way("tcp") { |place| TCPSocket.new("127.0.0.1", place["tcp"]).close }
way("http") do |place|
  Net::HTTP.start("127.0.0.1", place["tcp"], open_timeout: 5) { |_| "connected" }
end
way("udp") { |place| UDPSocket.new.send("x", 0, "127.0.0.1", place["udp"]) }
way("listen") { |_| TCPServer.new("127.0.0.1", 0).close }
way("listen on a path") { |place| UNIXServer.new("#{place["folder"]}/server").close }
way("socket with a path") { |place| UNIXSocket.new(place["socket"]).close }
way("socket with a name") { |place| Socket.unix("\0#{place["abstract"]}").close }
way("datagram to a path") do |place|
  ours, = Socket.pair(:UNIX, :DGRAM)
  ours.send("x", 0, Addrinfo.unix(place["datagram"]))
end
way("socket of the kernel") { |_| Socket.new(16, :RAW, 0).close }
way("run a program") { |_| system("true") or raise Refused }
way("run a shell") { |_| `exit 0`.to_s }
way("run with pipes") { |_| Open3.capture2("cat", stdin_data: "x") }
way("spawn a program") { |_| Process.wait(Process.spawn("true")) }
way("fork") { |_| Process.wait(fork { exit!(0) }) }
way("open a pipe to a program") { |_| IO.popen(["true"]).close }
way("session") { |_| Process.setpgid(0, 0) }
way("namespace of users") do |_|
  Process.wait(fork { exit!(system_call(272, 97, 0x10000000).zero?) })
  $?.success? or raise Refused
end
way("memory of System V") { |_| system_call(29, 194, 0, 4096, 0o600) }
way("semaphores of System V") { |_| system_call(64, 190, 0, 1, 0o600) }
way("messages of System V") { |_| system_call(68, 186, 0, 0o600) }
way("keys") { |_| system_call(250, 219, 0, -3, 1) }
way("further rules") { |_| system_call(444, 444, 0, 0, 1) }
way("another user") { |_| Process::Sys.setresuid(Process.uid, Process.uid, Process.uid) }
way("a file in shared memory") do |_|
  File.write("/dev/shm/crosslane-way-out", "x")
  File.unlink("/dev/shm/crosslane-way-out")
end

udf("ways() -> VARCHAR[]") { WAYS.keys }

udf("attempt(name VARCHAR, place VARCHAR) -> VARCHAR", deterministic: false) do |name, place|
  WAYS.fetch(name).call(JSON.parse(place))
  "out"
rescue Exception => error
  "#{error.class}: #{error.message}"
end
