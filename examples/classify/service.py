"""A service on this machine that classifies texts, as the API of a model does.

It takes 20 ms for an answer, and fails for one request in fifty (503). It refuses more than 400 requests
a second (429), and says when to ask again.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PER_SECOND = 400
TOPICS = {"goal": "sports", "vote": "politics", "song": "music", "star": "science"}


class Service(ThreadingHTTPServer):
    """Answers on a free port, and counts what it has answered."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answered = self.refused = self.failed = 0
        self._lock = threading.Lock()
        self._tokens, self._since = float(PER_SECOND), time.monotonic()

    @property
    def url(self) -> str:
        """The address for requests."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def status(self) -> int:
        """The status of the next answer."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(PER_SECOND, self._tokens + (now - self._since) * PER_SECOND)
            self._since = now
            if self._tokens < 1:
                self.refused += 1
                return 429
            self._tokens -= 1
            if (self.answered + self.failed) % 50 == 49:
                self.failed += 1
                return 503
            self.answered += 1
            return 200


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Service

    def do_POST(self) -> None:
        """Answers with the topic of a text."""
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        status = self.server.status()
        topic = next((topic for word, topic in TOPICS.items() if word in text), "other")
        body = json.dumps({"topic": topic}).encode()
        time.sleep(0.02)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
