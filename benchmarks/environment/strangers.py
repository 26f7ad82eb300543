"""Connections without a token that never make a request: half of them send nothing, half send half
a header.

    python -m benchmarks.environment.strangers URL NUMBER

They run in a separate process, since in the clients' event loop they would delay the clients'
requests. If the server closes a connection, another is opened after a pause. When standard input
ends, the number of opened connections is printed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from urllib.parse import urlsplit

PAUSE_SECONDS = 1.0
"""Mean pause in seconds before a closed connection is opened again."""
HALF_A_HEADER = b"POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"


async def hold(url: str, number: int) -> int:
    """Hold `number` connections until standard input ends. Return the number that were opened."""
    where, opened = urlsplit(url), 0

    async def come(each: int) -> None:
        nonlocal opened
        chance = random.Random(each)
        while True:
            await asyncio.sleep(chance.random() * 2 * PAUSE_SECONDS)
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                try:
                    opened += 1
                    writer.write(HALF_A_HEADER if each % 2 else b"")
                    await reader.read()
                finally:
                    writer.transport.abort()

    tasks = [asyncio.create_task(come(each)) for each in range(number)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return opened


if __name__ == "__main__":
    print(asyncio.run(hold(sys.argv[1], int(sys.argv[2]))))
