"""The control socket of ``docs/protocol.md``: JSON messages, some with descriptors."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any


class EndOfFile(Exception):
    """The engine has closed the control socket."""


class Control:
    """The end of a control socket on the side of the guest."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = bytearray()
        self._descriptors: list[int] = []

    def send(self, **message: Any) -> None:
        text = json.dumps(message).encode()
        self.connection.sendall(struct.pack("<I", len(text)) + text)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and the descriptors that came with it."""
        self._fill(4)
        (length,) = struct.unpack_from("<I", self._received)
        self._fill(4 + length)
        message = json.loads(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        descriptors, self._descriptors = self._descriptors, []
        return message, descriptors

    def _fill(self, length: int) -> None:
        while len(self._received) < length:
            data, descriptors, _, _ = socket.recv_fds(self.connection, length - len(self._received), 3)
            if not data:
                raise EndOfFile
            self._received += data
            self._descriptors += descriptors
