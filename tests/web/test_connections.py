"""Connections that say nothing do not keep others out."""

import asyncio
import socket
import time
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import httpx
import pytest
import uvicorn

from ananet.web import connections
from ananet.web.app import create_app
from ananet.web.connections import CLIENTS, MORE, Connections
from ananet.web.limits import Limits

LIMITS = Limits(connections=20)
POINTS = {"points0": [[0, 0], [9, 9]], "points1": [[1, 1], [5, 5]], "ratio": [0.3, 0.9], "pruner": "ratio"}


@contextmanager
def served(app, limits: Limits = LIMITS):
    """The port of a service in a thread."""
    config = uvicorn.Config(app, port=0, log_level="warning", http=Connections(limits).protocol)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port():
    with served(create_app(pruner="ratio", device="cpu", limits=LIMITS)) as found:
        yield found


def connect(stack: ExitStack, port: int, said: bytes = b"") -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    made.sendall(said)
    return made


@pytest.mark.parametrize("said", [b"", b"GET /v1/pruners HTTP/1.1\r\nX-Slow: "], ids=["silent", "half a head"])
def test_silent_connections_give_way(said, port):
    address = f"http://127.0.0.1:{port}"
    with ExitStack() as stack, httpx.Client() as client:
        assert client.get(f"{address}/healthz").status_code == 200
        silent = [connect(stack, port, said) for _ in range(5 * LIMITS.connections)]
        for _ in range(3):
            assert httpx.get(f"{address}/healthz").status_code == 200
            assert httpx.post(f"{address}/v1/prune", json=POINTS).status_code == 200
        # The first ones were closed.
        assert not closed(silent[-1]) and all(map(closed, silent[: 3 * LIMITS.connections]))


def closed(made: socket.socket) -> bool:
    made.settimeout(0.2)
    try:
        return made.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_connections_at_work_do_not_give_way(monkeypatch):
    may_go = Event()

    async def app(scope, receive, send):
        while scope["path"] == "/slow" and not may_go.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    with ExitStack() as stack:
        port = stack.enter_context(served(app))
        stack.callback(may_go.set)
        address = f"http://127.0.0.1:{port}"
        slow = [
            connect(stack, port, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(LIMITS.connections)
        ]
        for _ in range(MORE + 3):
            time.sleep(0.01)
            refused = httpx.get(f"{address}/page")
            assert refused.status_code == 503 and refused.headers["content-type"] == "application/json"
            assert "at most 20 of one client" in refused.json()["error"] and refused.headers["retry-after"] == "1"
            assert refused.headers["x-content-type-options"] == "nosniff"
            assert httpx.get(f"{address}/healthz").status_code == 200
        # Refused ones give way too.
        silent = [connect(stack, port) for _ in range(2 * MORE)]
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert sum(map(closed, silent)) >= MORE
        may_go.set()
        assert all(made.recv(12) == b"HTTP/1.1 200" for made in slow)
        assert httpx.get(f"{address}/page").status_code == 200


def test_whoever_says_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with ExitStack() as stack:
        port = stack.enter_context(served(create_app(pruner="ratio", device="cpu")))
        slow = connect(stack, port, b"GET /healthz HTTP/1.1\r\n")
        silent, again = connect(stack, port), connect(stack, port)
        # Requests that follow each other keep a connection open.
        for _ in range(4):
            again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += again.recv(5000) or pytest.fail("closed")
            time.sleep(0.2)
        assert closed(slow) and closed(silent)


class Fake:
    """A connection as `Connections` sees it."""

    def __init__(self, registry: Connections, address: str, is_idle: bool = True) -> None:
        self.registry, self.address, self.is_idle = registry, address, is_idle
        self.refused = self.dropped = False

    def drop(self) -> None:
        self.dropped = True
        self.registry.remove(self)


def test_clients_do_not_take_each_others_places():
    registry = Connections(Limits(connections=4))

    def arrive(*arguments) -> Fake:
        made = Fake(registry, *arguments)
        registry.add(made)
        return made

    many = [arrive("a") for _ in range(10)]
    assert [one.dropped for one in many] == [True] * 6 + [False] * 4
    one = arrive("b")
    others = [arrive(f"client {number}") for number in range(4 * CLIENTS - 5)]
    assert not any(other.dropped or other.refused for other in (one, *others, *many[6:]))
    # All together have too many now: the client with the most gives way.
    last = arrive("last")
    assert [one.dropped for one in many[6:]] == [True, False, False, False] and not last.refused
    busy = [arrive("c", False) for _ in range(5)]
    assert [one.refused for one in busy] == [False] * 4 + [True]
    for connection in [*many, one, *others, last, *busy]:
        registry.remove(connection)
    assert not registry._open
