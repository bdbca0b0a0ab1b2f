"""A function that asks a service over HTTPS, with a connection for each row."""

from __future__ import annotations

import functools
import ssl
import urllib.request

from crosslane import udf


@functools.cache
def context(certificate: str) -> ssl.SSLContext:
    """An SSL context that trusts this certificate."""
    return ssl.create_default_context(cafile=certificate)


@udf(deterministic=False)
def asks(port: int, certificate: str) -> int:
    """The length of the answer."""
    url = f"https://localhost:{port}/"
    with urllib.request.urlopen(url, context=context(certificate)) as answer:
        return len(answer.read())
