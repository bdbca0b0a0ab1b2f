"""Runs a query in a program with a filter of system calls, like the filters of containers.

``container.py CALLS FILE HOSTS QUERY``: these calls, with commas between them, fail with EPERM. If one is
``listen``, the container watches all system calls itself, as some containers do.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

import crosslane

#: Numbers of system calls, on x86-64 and on arm64.
NUMBERS = {
    "seccomp": (317, 277),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "unshare": (272, 97),
    "listen": (-1, -1),
}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050001
SET_FILTER, NEW_LISTENER = 1, 8
PR_SET_NO_NEW_PRIVS = 38


def restrict(name: str) -> None:
    def number(call: str) -> int:
        return NUMBERS[call][platform.machine() == "aarch64"]

    instructions = [
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, number(name) & 0xFFFFFFFF),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    ]
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(program)
    filter = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    flags = NEW_LISTENER if name == "listen" else 0
    if libc.syscall(number("seccomp"), SET_FILTER, flags, filter) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    calls, file, hosts, query = sys.argv[1:]
    for call in calls.split(","):
        restrict(call)
    with crosslane.connect(functions=[file], settings={"sandbox": "on", "allow_net": hosts}) as con:
        for row in con.execute(query).fetchall():
            print(*row)


if __name__ == "__main__":
    main()
