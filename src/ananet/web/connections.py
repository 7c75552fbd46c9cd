"""Limits of connections: how many a client has, and how long they may be silent."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ananet.web.limits import CLOSE, HEADERS, HEALTH, Limits, error_response

# Within which a request has to begin and its headers to arrive.
HEAD_SECONDS = 10.0
# In all, as many connections as so many clients may have at most.
CLIENTS = 5
# Connections beyond the limits that may ask whether the service is up, and are told of the limit otherwise.
MORE = 16


class Connections:
    """Open connections by client; the server's `http` protocol is `protocol`.

    For a new one beyond the limits, the oldest silent one is closed: silence keeps nobody out. If all are at work, the
    new one may only ask whether the service is up.
    """

    def __init__(self, limits: Limits) -> None:
        self.most = limits.connections
        # Dictionaries keep the order of arrival.
        self._open: dict[str | None, dict[LimitedProtocol, None]] = {}

    def protocol(self, *arguments: Any, **options: Any) -> LimitedProtocol:
        return LimitedProtocol(self, *arguments, **options)

    def add(self, new: LimitedProtocol) -> None:
        own = self._open.setdefault(new.address, {})
        own[new] = None
        beyond, groups = len(own) - self.most, [own]
        if beyond <= 0:
            beyond, groups = sum(map(len, self._open.values())) - CLIENTS * self.most, [*self._open.values()]
        if beyond <= 0:
            return
        # Of the client that has the most of them.
        idle = max(([one for one in group if one.is_idle and one is not new] for group in groups), key=len)
        admitted = [one for one in idle if not one.refused]
        if admitted:
            admitted[0].drop()
            return
        new.refused = True
        if beyond > MORE:
            (idle or [new])[0].drop()

    def remove(self, old: LimitedProtocol) -> None:
        own = self._open.get(old.address, {})
        own.pop(old, None)
        if not own:
            self._open.pop(old.address, None)


class LimitedProtocol(H11Protocol):
    """A connection that is closed when no request begins in time."""

    def __init__(self, registry: Connections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.registry = registry
        self.address: str | None = None
        self.refused = False
        self._served: ASGIApp = self.app
        self.app = self._or_refused
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered: none came, or not all of its headers."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else None
        self.registry.add(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.registry.remove(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        self.registry.remove(self)
        self.transport.abort()

    def _watch(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._look, self.is_idle, self.cycle)

    def _look(self, was_idle: bool, cycle: object) -> None:
        if was_idle and self.is_idle and self.cycle is cycle:
            self.drop()
        else:
            self._watch()

    async def _or_refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.refused and scope["path"] != HEALTH:
            told = f"connections: expected at most {self.registry.most} of one client; try again in a second"
            refusal = HTTPException(503, told, {**HEADERS, **CLOSE, "retry-after": "1"})
            await error_response(refusal)(scope, receive, send)
        else:
            await self._served(scope, receive, send)
