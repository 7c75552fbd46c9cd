"""Limits of requests, and the middleware that enforces them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ananet._util.checks import Settings, check_positive, check_whole_number
from ananet.web.counters import Counters

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
# Routes that are counted and limited in number.
WORK = ("/v1/prune", "/v1/match")


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
    seconds: float = 60.0
    """From the first byte of a request to its response."""
    longest_side: int = 1600
    """Of a photo, in pixels: larger photos are scaled down before keypoints are detected."""

    def check(self) -> None:
        for name in ("upload_bytes", "pixels", "matches", "in_flight", "longest_side"):
            check_whole_number(name, getattr(self, name), 1)
        check_positive("seconds", self.seconds)


class RefusedError(Exception):
    """A refused request: status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


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
    """Middleware: checks token, origin, size, number and time of requests, counts them, and reports errors.

    Args:
        token: expected in `Authorization: Bearer` by `/v1/` and `/metrics`; None for no token.
        origins: other sites that may call the service from their pages.
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
            await _response(_as_refusal(error, self.limits))(scope, receive, sending)
        finally:
            if worked_on:
                self.counters.answered(scope["path"], status, time.monotonic() - start)

    def _admit(self, scope: Scope) -> None:
        """Raise for requests that can be refused before reading them."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        origin = headers.get("origin")
        # Otherwise, any site could send requests from the browsers of its visitors to a service on their machine.
        if origin is not None and origin not in self.origins and origin.partition("://")[2] != headers.get("host"):
            raise RefusedError(403, f"origin: expected a page of this service, got {origin[:80]!r}")
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


def _as_refusal(error: Exception, limits: Limits) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, TimeoutError):
        return RefusedError(504, f"request: expected to be done within {limits.seconds:g} seconds, took longer")
    # The details go to the log only.
    logger.error("a request failed", exc_info=error)
    return RefusedError(500, "the service failed on this request; its log says more")


def _response(refusal: RefusedError) -> JSONResponse:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(refusal.status, {})
    if refusal.status in (401, 403, 413, 429):
        # The rest of the request is not read.
        headers["connection"] = "close"
    return JSONResponse({"error": refusal.reason}, refusal.status, headers)
