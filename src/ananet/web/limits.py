"""Limits of requests, counters, and the middleware that enforces and counts."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ananet._util.checks import Settings, check_positive, check_whole_number

Result = TypeVar("Result")
logger = logging.getLogger("ananet.web")

# The page loads nothing from other hosts and cannot be framed. Photos are shown from blobs.
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
# For refused requests, which are not read to their end.
CLOSE = {"connection": "close"}
# Length of an error, which may quote what the client sent.
MAX_ERROR = 1000
# Routes that are counted and limited in number.
WORK = ("/v1/prune", "/v1/match")
# Whether the service is up: answered whatever the limits are.
HEALTH = "/healthz"
# A name or an address, an IPv6 address in brackets, then perhaps a port.
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:]+?)\.?)(?::\d*)?")
# Names of the own machine.
LOCAL = ("localhost", "127.0.0.1", "::1")
# Histogram of response times, in seconds.
BUCKETS = ("0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "+Inf")


@dataclass(frozen=True)
class Limits(Settings):
    """Limits of one request, and of all together."""

    upload_bytes: int = 32 * 2**20
    """Size of a request."""
    pixels: int = 40_000_000
    """Of a photo, read from its header before it is decoded."""
    matches: int = 10_000
    """Per request. The time of a network grows with the square of this number, and other clients wait."""
    in_flight: int = 64
    """Requests that run or wait; more get status 429."""
    connections: int = 100
    """Open connections of one client, or one proxy; a silent one gives way, more get status 503."""
    seconds: float = 60.0
    """From the first byte of a request to its response."""
    longest_side: int = 1600
    """Of a photo, in pixels: larger photos are scaled down before keypoints are detected."""

    def check(self) -> None:
        for name in ("upload_bytes", "pixels", "matches", "in_flight", "connections", "longest_side"):
            check_whole_number(name, getattr(self, name), 1)
        check_positive("seconds", self.seconds)


class Counters:
    """Requests by route and status, and their times, for Prometheus. Routes are our own names, never a client's text.

    >>> counters = Counters()
    >>> counters.answered("/v1/prune", 200, 0.07)
    >>> print(counters.text({"ananet_batches_total": 1}).splitlines()[1])
    ananet_requests_total{route="/v1/prune",status="200"} 1
    """

    def __init__(self) -> None:
        # Requests that run or wait.
        self.in_flight = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._within: Counter[tuple[str, str]] = Counter()

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]
        self._within.update((route, end) for end in BUCKETS if seconds <= float(end))

    def text(self, now: Mapping[str, float]) -> str:
        """Return all counters, and further values by name; names that end in `_total` are counters, others gauges."""
        lines = ["# TYPE ananet_requests_total counter"]
        for (route, status), count in sorted(self._requests.items()):
            lines.append(f'ananet_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE ananet_request_seconds histogram")
        for route, seconds in sorted(self._seconds.items()):
            for end in BUCKETS:
                lines.append(f'ananet_request_seconds_bucket{{route="{route}",le="{end}"}} {self._within[route, end]}')
            lines.append(f'ananet_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'ananet_request_seconds_count{{route="{route}"}} {self._within[route, "+Inf"]}')
        for name, value in {"ananet_in_flight": self.in_flight, **now}.items():
            lines += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


class ClientGoneError(Exception):
    """The client has disconnected."""


async def unless_gone(request: Request, result: Future[Result]) -> Result:
    """Wait for a result. Cancel it when the client disconnects or the time is up."""
    waiting = asyncio.ensure_future(asyncio.wrap_future(result))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientGoneError
        return waiting.result()
    finally:
        gone.cancel()
        # Through `wrap_future`, this also cancels a result that has not started.
        waiting.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Middleware: checks host, token, origin, size, number and time of requests, counts them, and reports errors.

    `/v1/` and `/metrics` expect the token, if there is one. Pages of `origins` may call the service too. It is called
    localhost, by an address, or by one of the names in `hosts`.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        counters: Counters,
        token: str | None = None,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        self.app, self.limits, self.counters = app, limits, counters
        self.token, self.origins = token, tuple(origins)
        self.hosts = tuple(dict.fromkeys((*LOCAL, *(host.lower() for host in hosts))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, begun = time.monotonic(), 499, False

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        worked_on = scope["path"] in WORK
        try:
            self._admit(scope)
            self.counters.in_flight += worked_on
            try:
                async with asyncio.timeout(self.limits.seconds):
                    await self.app(scope, self._measured(receive), sending)
            finally:
                self.counters.in_flight -= worked_on
        except (ClientGoneError, ClientDisconnect):
            pass
        except Exception as error:
            if begun:
                raise
            if isinstance(error, TimeoutError):
                told = f"request: expected to be done within {self.limits.seconds:g} seconds, took longer"
                error = HTTPException(504, told)
            elif not isinstance(error, HTTPException):
                # The details go to the log only.
                logger.error("a request failed", exc_info=error)
                error = HTTPException(500, "the service failed on this request; its log says more")
            await error_response(error)(scope, receive, sending)
        finally:
            if worked_on:
                self.counters.answered(scope["path"], status, time.monotonic() - start)

    def _admit(self, scope: Scope) -> None:
        """Raise for requests that can be refused before reading them."""
        headers, path = Headers(scope=scope), scope["path"]
        self._check_host(headers.get("host"))
        origin = headers.get("origin")
        # Otherwise, any site could send requests from the browsers of its visitors to a service on their machine.
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != headers.get("host"):
            raise HTTPException(403, f"origin: expected a page of this service, got {origin[:80]!r}", CLOSE)
        closed = (path.startswith("/v1/") or path == "/metrics") and scope["method"] != "OPTIONS"
        # The name of the scheme may be in any case, the token may not.
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self.token or "").encode())
        if self.token is not None and closed and not right:
            told = "authorization: expected the header 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, told, {**CLOSE, "www-authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.limits.upload_bytes:
            raise self._too_large()
        if path in WORK and self.counters.in_flight >= self.limits.in_flight:
            told = f"requests: expected at most {self.limits.in_flight} at a time; try again in a second"
            raise HTTPException(429, told, {**CLOSE, "retry-after": "1"})

    def _check_host(self, host: str | None) -> None:
        """Raise if a browser calls the service by a name that is not known.

        The site of that name may have pointed it here: to the browser, its pages are of this service then.
        """
        # Only browsers are misled so, and they send the name.
        if host is None:
            return
        parts = HOST.fullmatch(host.lower())
        name = (parts[1] or parts[2]) if parts else ""
        if name not in self.hosts and not _is_address(name):
            told = f"host: expected one of {', '.join(self.hosts)}, or one named by --allow-host, got {host[:80]!r}"
            raise HTTPException(403, told, CLOSE)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"request: expected at most {self.limits.upload_bytes:,} bytes, got more", CLOSE)

    def _measured(self, receive: Receive) -> Receive:
        """Count the bytes that arrive, whatever Content-Length says."""
        taken = 0

        async def receiving() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.limits.upload_bytes:
                raise self._too_large()
            return message

        return receiving


def _is_address(name: str) -> bool:
    """Whether it is an IP address, which no site can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def error_response(error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail[:MAX_ERROR]}, error.status_code, error.headers)
