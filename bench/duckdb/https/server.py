"""A server for HTTPS on this machine, in a process of its own."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Answers(BaseHTTPRequestHandler):
    """Answers all requests alike."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answered")

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[int, Path]]:
    """Starts the server. Gives its port, and its certificate, which is for ``localhost``."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt"]
    make += [
        "ec_paramgen_curve:prime256v1",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
    ]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    command = [sys.executable, __file__, certificate, key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), certificate
        finally:
            process.kill()


def _main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        print(listening.server_address[1], flush=True)
        listening.serve_forever()


if __name__ == "__main__":
    _main()
