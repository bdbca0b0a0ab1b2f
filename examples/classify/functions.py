"""A function that asks a service."""

import asyncio
import json
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from crosslane import udf

REQUESTS = ThreadPoolExecutor(16)


@udf(memoize="50 MB", rate="400/s", concurrency=16, timeout=5, retries=8)
async def topic(text: str) -> str:
    """The topic of a text, as the service at `CLASSIFY_URL` says."""
    return await asyncio.get_running_loop().run_in_executor(REQUESTS, ask, text)


def ask(text: str) -> str:
    """One request."""
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(os.environ["CLASSIFY_URL"], body) as answer:
        return json.load(answer)["topic"]
