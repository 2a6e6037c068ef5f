"""Clients that ask a server without a pause, and measure each answer; in a process of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count

WARM_UP = 0.5
"""Seconds that are not counted."""


@dataclass
class Load:
    """What the clients measured."""

    milliseconds: list[float]
    """The time of each request."""
    seconds: float
    """The time that was counted, until the last answer."""
    failed: int
    """Answers other than 200."""
    first: str
    """The answer to the first body."""


def measure(port: int, path: str, bodies: list[bytes], clients: int, seconds: float) -> Load:
    """Ask for some seconds with so many clients, each with one request at a time."""
    asked = [str(port), path, str(clients), str(seconds)]
    done = subprocess.run(
        [sys.executable, __file__, *asked],
        input=json.dumps([body.decode() for body in bodies]),
        capture_output=True,
        text=True,
        check=True,
    )
    return Load(**json.loads(done.stdout))


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
) -> tuple[int, bytes]:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    lines = answer.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def _load(port: int, path: str, bodies: list[bytes], clients: int, seconds: float) -> Load:
    load = Load([], seconds, 0, "")
    numbers = count()
    begin = time.monotonic() + WARM_UP
    end = begin + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (sent := time.monotonic()) < end:
            number = next(numbers)
            status, answer = await _ask(reader, writer, path, bodies[number % len(bodies)])
            if number == 0:
                load.first = answer.decode()
            load.failed += status != 200
            if sent >= begin:
                load.milliseconds.append(1_000 * (time.monotonic() - sent))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.monotonic() - begin
    return load


if __name__ == "__main__":
    port, path, clients, seconds = sys.argv[1:]
    bodies = [body.encode() for body in json.load(sys.stdin)]
    found = asyncio.run(_load(int(port), path, bodies, int(clients), float(seconds)))
    json.dump(vars(found), sys.stdout)
