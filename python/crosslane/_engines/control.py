"""The control socket of ``docs/protocol.md``: JSON messages, some with descriptors."""

from __future__ import annotations

import array
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
            space = socket.CMSG_LEN(3 * array.array("i").itemsize)
            data, ancillary, _, _ = self.connection.recvmsg(length - len(self._received), space)
            if not data:
                raise EndOfFile
            self._received += data
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                    self._descriptors.extend(numbers)
