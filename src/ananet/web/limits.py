"""What a client may ask for, and what stands between the network and the application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ananet._util.checks import Settings, check_positive, check_whole_number
from ananet.web.counters import Counters

Answer = TypeVar("Answer")
logger = logging.getLogger("ananet.web")

# Nothing from elsewhere is loaded, and nobody else may frame the page. Photos are shown from blobs.
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
# Work is done here: these are counted, limited and, with a token, closed to others.
WORK = ("/v1/prune", "/v1/match")


@dataclass(frozen=True)
class Limits(Settings):
    """What one request, and all of them together, may take."""

    upload_bytes: int = 32 * 2**20
    """Of a request as a whole."""
    pixels: int = 40_000_000
    """Of a photo; read from its header, before it is decoded."""
    matches: int = 10_000
    """Of a request. The time of a network grows with their square, and others wait."""
    in_flight: int = 64
    """Requests that are worked on or wait; more are told to come again."""
    seconds: float = 60.0
    """From the first byte of a request to its answer."""
    longest_side: int = 1600
    """Of a photo, in pixels: larger ones are reduced before keypoints are looked for."""

    def check(self) -> None:
        for name in ("upload_bytes", "pixels", "matches", "in_flight", "longest_side"):
            check_whole_number(name, getattr(self, name), 1)
        check_positive("seconds", self.seconds)


class RefusedError(Exception):
    """An answer that is not what was asked for: its status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class ClientGoneError(Exception):
    """Nobody is left to be answered."""


async def unless_gone(request: Request, answer: Future[Answer]) -> Answer:
    """Wait for an answer, and cancel it when the client goes away or the time is over."""
    waiting = asyncio.ensure_future(asyncio.wrap_future(answer))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientGoneError
        return waiting.result()
    finally:
        gone.cancel()
        # Through `wrap_future` this also cancels the answer, where it has not begun.
        waiting.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Middleware: token, origin, size, requests in flight, time, counting, and answers to what goes wrong.

    Args:
        token: that `Authorization: Bearer` must carry for everything but the page and `/healthz`; None for anyone.
        origins: of other sites whose pages may use the service.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, counters: Counters, token: str | None = None, origins: Sequence[str] = ()
    ) -> None:
        self.app, self.limits, self.counters = app, limits, counters
        self.token, self.origins = token, tuple(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 499
        begun = False

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
            await _refuse(_as_refusal(error, self.limits), sending)
        finally:
            if worked_on:
                self.counters.answered(scope["path"], status, time.monotonic() - start)

    def _admit(self, scope: Scope) -> None:
        """Raises for what can be refused before any of it is read."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        origin = headers.get("origin")
        # A page of another site could make its visitors send requests to a service on their own machine.
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != headers.get("host"):
            raise RefusedError(403, "origin: expected a page of this service, got one of another site")
        closed = path.startswith("/v1/") or path == "/metrics"
        if self.token is not None and closed and scope["method"] != "OPTIONS":
            given = headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                raise RefusedError(401, "authorization: expected the header 'Authorization: Bearer TOKEN'")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.limits.upload_bytes:
            raise self._too_large()
        if path in WORK and self.counters.in_flight >= self.limits.in_flight:
            raise RefusedError(
                429, f"requests: expected at most {self.limits.in_flight} at a time; try again in a second"
            )

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"request: expected at most {self.limits.upload_bytes:,} bytes, got more")

    def _measured(self, receive: Receive) -> Receive:
        """What the client really sends, whatever it says of its length."""
        taken = 0

        async def receiving() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.limits.upload_bytes:
                raise self._too_large()
            return message

        return receiving


def _as_refusal(error: Exception, limits: Limits) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, TimeoutError):
        return RefusedError(504, f"request: expected to be done within {limits.seconds:g} seconds, took longer")
    # The client learns nothing of the inside.
    logger.error("a request failed", exc_info=error)
    return RefusedError(500, "the service failed on this request; its log says more")


async def _refuse(refusal: RefusedError, send: Send) -> None:
    body = json.dumps({"error": refusal.reason}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status == 429:
        headers.append((b"retry-after", b"1"))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status in (401, 403, 413, 429):
        # What is left of the request is not read.
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
