"""The sockets that a server listens at."""

from __future__ import annotations

import socket

from recsys.errors import InputError

GRACE = 30
"""Seconds that open requests have to end after a SIGTERM."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one.

    Raises:
        InputError: the address cannot be listened on.
    """
    return _bound(host, port, shared=False, listening=True)


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that has an address and does not listen, for several that share it.

    Raises:
        InputError: another process listens there, or the system cannot share a port.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise InputError("--workers: this system cannot share a port between processes: use 1")
    # Another server that shares its port would be joined: only a socket that does not share finds
    # that somebody listens.
    listen(host, port).close()
    return _bound(host, port, shared=True, listening=False)


def listen_beside(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address that was reserved; the system spreads connections.

    Each worker has a socket of its own: at one that they shared, the first to wake would take all
    connections of a burst, and they last.

    Raises:
        InputError: the address cannot be listened on.
    """
    return _bound(host, port, shared=True, listening=True)


def _bound(host: str, port: int, *, shared: bool, listening: bool) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # By name, since asyncio sends without delay (TCP_NODELAY) only where it sees the protocol:
        # without, each answer waits 40 ms for an acknowledgement.
        place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            place.bind(address)
            if listening:
                place.listen(2048)
        except OSError:
            place.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return place
