"""Ways out of a sandbox: processes, the network, and other parts of the kernel.

A way that leads out does no harm: its signals are 0, and its files belong to the test.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import functools
import multiprocessing
import os
import pathlib
import platform
import resource
import signal
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ways import WAYS, Refused, attempt, attempt_alone, opened, way, ways
else:
    from ways import WAYS, Refused, attempt, attempt_alone, opened, way, ways

__all__ = ["attempt", "attempt_alone", "ways"]

libc = ctypes.CDLL(None, use_errno=True)

#: Numbers of system calls, on x86-64 and on arm64.
NUMBERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "clone": (56, 220),
    "chroot": (161, 51), "keyctl": (250, 219), "add_key": (248, 217), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "name_to_handle_at": (303, 264), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "openat2": (437, 437),
    "clone3": (435, 435), "execveat": (322, 281), "memfd_create": (319, 279),
    "open_tree": (428, 428), "fsopen": (430, 430), "move_pages": (279, 239), "process_madvise": (440, 440),
}  # fmt: skip

AT_FDCWD = -100


def call(name: str, *arguments: Any) -> int:
    number = NUMBERS[name][platform.machine() == "aarch64"]
    done = libc.syscall(number, *(ctypes.c_long(it) if isinstance(it, int) else it for it in arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(done)


def found(what: object) -> object:
    """Returns what the way has found. If that is nothing, it raises an exception."""
    if not what:
        raise Refused
    return what


def reach(name: str, _place: dict[str, Any]) -> None:
    """Makes a system call without valid arguments. If the call is not refused, the kernel has looked at the
    arguments."""
    try:
        call(name, 0, 0, 0, 0, 0)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise


for _name in (
    "mount", "chroot", "open_tree", "fsopen", "bpf", "perf_event_open", "userfaultfd", "fanotify_init", "mq_open",
    "pidfd_getfd", "pidfd_send_signal", "process_madvise",
):  # fmt: skip
    WAYS[f"call_{_name}"] = functools.partial(reach, _name)


def checked(done: int) -> int:
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


@way
def read_by_openat2(place: dict[str, Any]) -> object:
    how = struct.pack("QQQ", os.O_RDONLY, 0, 0)
    return os.read(call("openat2", AT_FDCWD, place["secret"].encode(), how, len(how)), 5)


@way
def watch_a_folder(place: dict[str, Any]) -> object:
    return call("inotify_init1", 0)


@way
def take_a_handle(place: dict[str, Any]) -> object:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    return call(
        "name_to_handle_at", AT_FDCWD, place["secret"].encode(), handle, ctypes.byref(ctypes.c_int()), 0
    )


# Other processes, and the files about them in /proc.


@way
def environment_of_the_engine(place: dict[str, Any]) -> object:
    return open(f"/proc/{place['engine']}/environ").read()


@way
def memory_of_the_engine(place: dict[str, Any]) -> object:
    return open(f"/proc/{place['engine']}/mem", "rb")


@way
def map_of_the_engine(place: dict[str, Any]) -> object:
    return open(f"/proc/{place['engine']}/maps").read()


@way
def command_of_the_engine(place: dict[str, Any]) -> object:
    return open(f"/proc/{place['engine']}/cmdline").read()


@way
def status_of_the_engine(place: dict[str, Any]) -> object:
    return open(f"/proc/{place['engine']}/status").read()


@way
def files_of_the_engine(place: dict[str, Any]) -> object:
    return os.listdir(f"/proc/{place['engine']}/fd")


@way
def list_of_processes(place: dict[str, Any]) -> object:
    return os.listdir("/proc")


@way
def command_of_the_first_process(place: dict[str, Any]) -> object:
    return open("/proc/1/cmdline").read()


@way
def read_memory_of_the_engine(place: dict[str, Any]) -> object:
    return call("process_vm_readv", place["engine"], None, 0, None, 0, 0)


@way
def write_memory_of_the_engine(place: dict[str, Any]) -> object:
    return call("process_vm_writev", place["engine"], None, 0, None, 0, 0)


@way
def trace_another(place: dict[str, Any]) -> object:
    # PTRACE_SEIZE stops no process, and ends with this process.
    return call("ptrace", 0x4206, place["other"], 0, 0)


@way
def open_the_engine(place: dict[str, Any]) -> object:
    return call("pidfd_open", place["engine"], 0)


@way
def compare_with_the_engine(place: dict[str, Any]) -> object:
    return call("kcmp", place["engine"], os.getpid(), 1, 0, 0)


@way
def move_memory_of_the_engine(place: dict[str, Any]) -> object:
    return call("move_pages", place["engine"], 0, None, None, None, 0)


@way
def signal_to_the_engine(place: dict[str, Any]) -> object:
    return os.kill(place["engine"], 0)


@way
def signal_to_another(place: dict[str, Any]) -> object:
    return os.kill(place["other"], 0)


@way
def signal_to_all(place: dict[str, Any]) -> object:
    return os.kill(-1, 0)


@way
def signal_to_the_group_of_the_engine(place: dict[str, Any]) -> object:
    return os.killpg(os.getpgid(place["engine"]), 0)


@way
def signal_to_a_thread_of_the_engine(place: dict[str, Any]) -> object:
    return call("tgkill", place["engine"], place["engine"], 0)


@way
def signal_with_a_value(place: dict[str, Any]) -> object:
    # The kernel refuses a value that seems to come from the kernel itself, but only after other checks.
    info = ctypes.create_string_buffer(struct.pack("iii", 0, 0, -1) + bytes(116))
    return call("rt_sigqueueinfo", place["engine"], 0, info)


@way
def signal_by_a_descriptor(place: dict[str, Any]) -> object:
    ours, _theirs = socket.socketpair()
    return fcntl.fcntl(ours, fcntl.F_SETOWN, place["engine"])


@way
def priority_of_the_engine(place: dict[str, Any]) -> object:
    return os.setpriority(os.PRIO_PROCESS, place["engine"], os.getpriority(os.PRIO_PROCESS, place["engine"]))


@way
def processors_of_the_engine(place: dict[str, Any]) -> object:
    return os.sched_setaffinity(place["engine"], os.sched_getaffinity(place["engine"]))


@way
def limits_of_the_engine(place: dict[str, Any]) -> object:
    return resource.prlimit(place["engine"], resource.RLIMIT_CORE)


@way
def scheduling_of_the_engine(place: dict[str, Any]) -> object:
    return os.sched_setscheduler(place["engine"], os.SCHED_OTHER, os.sched_param(0))


# The environment.


@way
def environment(place: dict[str, Any]) -> object:
    return found(os.environ.get("CROSSLANE_TEST_SECRET"))


@way
def environment_in_c(place: dict[str, Any]) -> object:
    libc.getenv.restype = ctypes.c_char_p
    return found(libc.getenv(b"CROSSLANE_TEST_SECRET"))


@way
def environment_of_the_zygote(place: dict[str, Any]) -> object:
    content = pathlib.Path(f"/proc/{os.getppid()}/environ").read_text()
    return found("CROSSLANE_TEST_SECRET" in content)


# The network.


@way
def tcp(place: dict[str, Any]) -> object:
    return socket.create_connection(("127.0.0.1", place["tcp"])).close()


@way
def tcp_by_asyncio(place: dict[str, Any]) -> object:
    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", place["tcp"])
        writer.close()

    return asyncio.run(connect())


@way
def tcp_with_data(place: dict[str, Any]) -> object:
    with socket.socket() as client:
        # MSG_FASTOPEN connects.
        return client.sendto(b"x", 0x20000000, ("127.0.0.1", place["tcp"]))


@way
def http(place: dict[str, Any]) -> object:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{place['tcp']}/", timeout=5)
    except (TimeoutError, ConnectionError):
        # The socket was connected to a program that is no server.
        return "connected"


@way
def udp(place: dict[str, Any]) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        return client.sendto(b"x", ("127.0.0.1", place["udp"]))


@way
def listen(place: dict[str, Any]) -> object:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.listen()


@way
def listen_on_a_path(place: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as server:
        return server.bind(place["folder"] + "/server")


@way
def socket_with_a_path(place: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect(place["socket"])


@way
def datagram_to_a_path(place: dict[str, Any]) -> object:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        return ours.sendto(b"x", place["datagram"])


@way
def socket_with_a_name(place: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect("\0" + place["abstract"])


@way
def socket_of_the_kernel(place: dict[str, Any]) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


@way
def socket_of_version_6(place: dict[str, Any]) -> object:
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()


@way
def netlink_by_datagrams(place: dict[str, Any]) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 9).close()


# Programs and processes.


@way
def run_a_program(place: dict[str, Any]) -> object:
    return subprocess.run(["true"], check=True)


@way
def run_a_shell(place: dict[str, Any]) -> object:
    status = os.system("exit 0")
    if status:
        raise PermissionError(status)
    return status


@way
def spawn_a_program(place: dict[str, Any]) -> object:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    _, status = os.waitpid(pid, 0)
    if status:
        raise PermissionError(status)
    return status


@way
def become_a_program(place: dict[str, Any]) -> object:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writing, 1)
        try:
            os.execv("/bin/echo", ["echo", "out"])
        finally:
            os._exit(1)
    os.close(writing)
    os.waitpid(pid, 0)
    if not os.read(reading, 3):
        raise PermissionError("nothing ran")
    return pid


@way
def fork(place: dict[str, Any]) -> object:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@way
def fork_by_clone(place: dict[str, Any]) -> object:
    pid = call("clone", signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@way
def fork_by_clone3(place: dict[str, Any]) -> object:
    arguments = struct.pack("8Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call("clone3", arguments, len(arguments))
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@way
def process_of_multiprocessing(place: dict[str, Any]) -> object:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    return process.join()


@way
def session(place: dict[str, Any]) -> object:
    return os.setpgid(0, 0)


@way
def outlive_the_zygote(place: dict[str, Any]) -> object:
    return checked(libc.prctl(1, signal.SIGKILL, 0, 0, 0))


@way
def run_a_program_in_memory(place: dict[str, Any]) -> object:
    descriptor = call("memfd_create", b"program", 0)
    os.write(descriptor, pathlib.Path("/usr/lib/os-release").read_bytes())
    try:
        return call("execveat", descriptor, b"", None, None, 0x1000)
    except OSError as error:
        if error.errno == 8:
            return "the file was no program, but it was read as one"
        raise


# Namespaces, and the things that all processes of a user share.


@way
def namespace_of_users(place: dict[str, Any]) -> object:
    return forked(lambda: call("unshare", 0x10000000))


@way
def namespace_of_mounts(place: dict[str, Any]) -> object:
    return forked(lambda: call("unshare", 0x10020000))


@way
def namespace_of_another(place: dict[str, Any]) -> object:
    with opened(f"/proc/{place['engine']}/ns/net") as descriptor:
        return call("setns", descriptor, 0)


@way
def memory_of_system_v(place: dict[str, Any]) -> object:
    return call("shmget", 0, 4096, 0o600)


@way
def semaphores_of_system_v(place: dict[str, Any]) -> object:
    return call("semget", 0, 1, 0o600)


@way
def messages_of_system_v(place: dict[str, Any]) -> object:
    return call("msgget", 0, 0o600)


@way
def keys(place: dict[str, Any]) -> object:
    return call("keyctl", 0, -3, 1)


@way
def add_a_key(place: dict[str, Any]) -> object:
    return call("add_key", b"user", b"way-out", b"x", 1, -1)


@way
def ring_of_the_kernel(place: dict[str, Any]) -> object:
    return call("io_uring_setup", 1, ctypes.create_string_buffer(120))


@way
def further_filters(place: dict[str, Any]) -> object:
    return call("seccomp", 2, 0, ctypes.byref(ctypes.c_int(0)))


@way
def further_rules(place: dict[str, Any]) -> object:
    return call("landlock_create_ruleset", None, 0, 1)


@way
def another_personality(place: dict[str, Any]) -> object:
    return checked(libc.personality(0x0040000 | libc.personality(0xFFFFFFFF)))


@way
def another_user(place: dict[str, Any]) -> object:
    return os.setresuid(os.getuid(), os.getuid(), os.getuid())


@way
def other_groups(place: dict[str, Any]) -> object:
    return os.setresgid(os.getgid(), os.getgid(), os.getgid())


def forked(work: Callable[[], object]) -> object:
    """Runs a function in a fork, because the function may change its process for good."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if status:
        raise PermissionError(status)
    return pid
