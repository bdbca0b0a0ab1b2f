"""Ways out of a sandbox that lists hosts. They lead to a port of this machine that is not listed."""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import random
import select
import socket
import struct
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ways import WAYS, Refused, attempt, way, ways
else:
    from ways import WAYS, Refused, attempt, way, ways

__all__ = ["WAYS", "attempt", "ways"]

libc = ctypes.CDLL(None, use_errno=True)
TCP_FASTOPEN_CONNECT = 30
IPPROTO_MPTCP = 262


def tcp(family: int = socket.AF_INET, protocol: int = 0) -> socket.socket:
    return socket.socket(family, socket.SOCK_STREAM, protocol)


def address(host: str, port: int) -> bytes:
    """The kernel's structure for an address."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


@way
def connect_elsewhere(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.connect(("127.0.0.1", place["tcp"]))


@way
def connect_without_waiting(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.setblocking(False)
        error = client.connect_ex(("127.0.0.1", place["tcp"]))
        if error == errno.EINPROGRESS:
            select.select([], [client], [])
            error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))


@way
def connect_by_the_new_protocol(place: dict[str, Any]) -> None:
    with tcp(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", place["tcp"]))


@way
def connect_to_any_address(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.connect(("0.0.0.0", place["tcp"]))


@way
def connect_by_several_paths(place: dict[str, Any]) -> None:
    with tcp(protocol=IPPROTO_MPTCP) as client:
        client.connect(("127.0.0.1", place["tcp"]))


@way
def connect_by_a_late_first_packet(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        client.connect(("127.0.0.1", place["tcp"]))
        client.send(b"out")


@way
def send_with_the_first_packet(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.sendto(b"out", socket.MSG_FASTOPEN, ("127.0.0.1", place["tcp"]))


@way
def send_a_message_with_the_first_packet(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.sendmsg([b"out"], [], socket.MSG_FASTOPEN, ("127.0.0.1", place["tcp"]))


@way
def turn_packets_elsewhere(place: dict[str, Any]) -> None:
    """A routing header has the addresses through which packets are sent."""
    with tcp(socket.AF_INET6) as client:
        header = bytes((0, 2, 4, 0, 0, 0, 0, 0)) + socket.inet_pton(socket.AF_INET6, "::1")
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, header)


@way
def make_the_close_wait(place: dict[str, Any]) -> None:
    with tcp() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))


@way
def send_a_datagram(place: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"out", ("127.0.0.1", place["udp"]))


@way
def connect_a_datagram_socket(place: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", place["udp"]))
        client.send(b"out")


@way
def change_the_address_while_the_engine_looks(place: dict[str, Any]) -> None:
    """The engine may see an allowed address, and the kernel another address."""
    allowed, forbidden = address("127.0.0.3", place["tcp"]), address("127.0.0.1", place["tcp"])
    shared = ctypes.create_string_buffer(allowed, 16)
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            # If the threads took turns, each attempt could see the same address. So this thread chooses at
            # random.
            ctypes.memmove(shared, random.choice((allowed, forbidden)), 16)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        attempts = {allowed: 0, forbidden: 0}
        # On a busy machine, the other thread may run seldom, and leave one address for many attempts.
        while min(attempts.values()) < 500:
            attempts[shared.raw] = attempts.get(shared.raw, 0) + 1
            with tcp() as client:
                if libc.connect(client.fileno(), shared, 16) == 0:
                    return
    finally:
        ended.set()
        thread.join()
    raise Refused


@way
def look_up_a_name(place: dict[str, Any]) -> None:
    socket.getaddrinfo("localhost", place["tcp"])


@way
def read_the_names_of_hosts(_place: dict[str, Any]) -> None:
    pathlib.Path("/etc/hosts").read_text()


@way
def ask_for_a_page(place: dict[str, Any]) -> None:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{place['tcp']}/", timeout=0.1)
    except TimeoutError:
        # The socket is connected to a server that never answers.
        return
