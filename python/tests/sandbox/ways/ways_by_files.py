"""Ways out of a sandbox: files.

A way that leads out does no harm: its signals are 0, and its files belong to the test.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import pathlib
import shutil
import socket
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ways import Refused, attempt, attempt_alone, opened, way, ways
else:
    from ways import Refused, attempt, attempt_alone, opened, way, ways

__all__ = ["attempt", "attempt_alone", "ways"]

O_TMPFILE, O_PATH = 0o20200000, 0o10000000


@way
def read_a_file(place: dict[str, Any]) -> object:
    return open(place["secret"]).read()


@way
def read_the_database(place: dict[str, Any]) -> object:
    return open(place["database"], "rb").read(16)


@way
def read_a_file_beside_the_library(place: dict[str, Any]) -> object:
    return (pathlib.Path(__file__).parent / "data.csv").read_text()


@way
def read_with_os(place: dict[str, Any]) -> object:
    with opened(place["secret"]) as descriptor:
        return os.read(descriptor, 10)


@way
def read_by_a_relative_path(place: dict[str, Any]) -> object:
    with opened(os.path.relpath(place["secret"])) as descriptor:
        return os.read(descriptor, 10)


@way
def read_from_a_folder(place: dict[str, Any]) -> object:
    with opened(os.path.dirname(place["secret"]), os.O_PATH) as folder:
        return os.read(os.open(os.path.basename(place["secret"]), os.O_RDONLY, dir_fd=folder), 10)


@way
def read_by_a_path_descriptor(place: dict[str, Any]) -> object:
    with opened(place["secret"], O_PATH) as descriptor:
        return open(f"/proc/self/fd/{descriptor}").read()


@way
def read_by_memory(place: dict[str, Any]) -> object:
    with opened(place["secret"]) as descriptor:
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)[:5]


@way
def read_by_sendfile(place: dict[str, Any]) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs, opened(place["secret"]) as descriptor:
        return os.sendfile(ours.fileno(), descriptor, 0, 5)


@way
def read_through_a_link(place: dict[str, Any]) -> object:
    return open(place["link"]).read()


@way
def copy_a_file(place: dict[str, Any]) -> object:
    return shutil.copyfile(place["secret"], place["secret"] + ".copy")


@way
def open_a_database(place: dict[str, Any]) -> object:
    with contextlib.closing(sqlite3.connect(place["sqlite"])) as database:
        return database.execute("SELECT * FROM t").fetchall()


@way
def list_a_folder(place: dict[str, Any]) -> object:
    return os.listdir(os.path.dirname(place["secret"]))


@way
def scan_a_folder(place: dict[str, Any]) -> object:
    return list(os.scandir(os.path.dirname(place["secret"])))


@way
def find_files(place: dict[str, Any]) -> object:
    found = glob.glob(os.path.dirname(place["secret"]) + "/*")
    if not found:
        raise Refused
    return found


@way
def list_the_root(place: dict[str, Any]) -> object:
    return os.listdir("/")


@way
def read_the_users(place: dict[str, Any]) -> object:
    return open("/etc/passwd").read()


@way
def read_the_log_of_the_kernel(place: dict[str, Any]) -> object:
    return os.listdir("/sys/kernel")


@way
def make_a_file(place: dict[str, Any]) -> object:
    return open(place["folder"] + "/new", "w").write("x")


@way
def make_a_file_without_a_name(place: dict[str, Any]) -> object:
    return os.open(place["folder"], O_TMPFILE | os.O_RDWR)


@way
def make_a_file_in_memory_that_has_a_name(place: dict[str, Any]) -> object:
    with open("/dev/shm/crosslane-way-out", "w") as file:
        os.unlink(file.name)
    return file


@way
def append_to_a_file(place: dict[str, Any]) -> object:
    return open(place["victim"], "a").write("x")


@way
def append_to_the_library(place: dict[str, Any]) -> object:
    return open(__file__, "a").write("\n")


@way
def shorten_a_file(place: dict[str, Any]) -> object:
    return os.truncate(place["victim"], 3)


@way
def shorten_a_file_when_it_is_opened(place: dict[str, Any]) -> object:
    return os.open(place["victim"], os.O_RDONLY | os.O_TRUNC)


@way
def shorten_the_library(place: dict[str, Any]) -> object:
    return os.open(__file__, os.O_WRONLY)


@way
def delete_a_file(place: dict[str, Any]) -> object:
    return os.unlink(place["deleted"])


@way
def delete_a_folder(place: dict[str, Any]) -> object:
    return os.rmdir(place["empty"])


@way
def make_a_folder(place: dict[str, Any]) -> object:
    return os.mkdir(place["folder"] + "/made")


@way
def rename_a_file(place: dict[str, Any]) -> object:
    return os.rename(place["moved"], place["moved"] + ".moved")


@way
def link_a_file(place: dict[str, Any]) -> object:
    return os.link(place["secret"], place["folder"] + "/hard")


@way
def link_by_name(place: dict[str, Any]) -> object:
    return os.symlink(place["secret"], place["folder"] + "/soft")


@way
def make_a_pipe_with_a_name(place: dict[str, Any]) -> object:
    return os.mkfifo(place["folder"] + "/pipe")


@way
def change_a_mode(place: dict[str, Any]) -> object:
    return os.chmod(place["victim"], 0o600)


@way
def change_the_mode_of_a_source(place: dict[str, Any]) -> object:
    with opened(__file__) as descriptor:
        return os.fchmod(descriptor, 0o644)


@way
def change_an_owner(place: dict[str, Any]) -> object:
    return os.chown(place["victim"], os.getuid(), os.getgid())


@way
def change_a_time(place: dict[str, Any]) -> object:
    return os.utime(place["victim"])


@way
def read_attributes(place: dict[str, Any]) -> object:
    return os.listxattr(place["victim"])
