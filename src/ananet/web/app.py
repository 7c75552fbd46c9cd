"""The application: a page and an HTTP API."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ananet import __version__
from ananet._util.defaults import DETECTOR, PRUNER
from ananet.errors import InputError
from ananet.features import DETECTORS, Detector, load_detector
from ananet.pruners import list_pruners, load
from ananet.twoview import PhotoMatcher
from ananet.twoview.models import check_model
from ananet.web import payloads
from ananet.web.batching import MAX_PAIRS, MAX_WAIT, Batcher, SharedPruner
from ananet.web.limits import HEALTH, Counters, Guard, Limits, error_response, unless_gone
from ananet.web.openapi import FIELDS, FORM, JSON, MATCH, MATCHED, NPZ, PRUNE, PRUNED, describe

# The files of the page.
SCRIPTS = ("page.js", "backend.js", "downloads.js")
STATIC = {"index.html": "html", "style.css": "css"} | dict.fromkeys(SCRIPTS, "javascript")
# Detectors without weights to download.
PLAIN_DETECTORS = (DETECTOR, "orb")
# Size of a text field of a form.
FIELD_BYTES = 4096


@dataclass(frozen=True, eq=False)
class Example:
    """A pair of photos that the page offers."""

    title: str
    photos: tuple[bytes, bytes]
    """JPEG files."""
    cameras: tuple[str, str] | None = None
    """fx,fy,cx,cy of each photo."""


class Service:
    """Pruners and detectors, each loaded once, and the threads that use them."""

    def __init__(self, limits: Limits, batcher: Batcher, pruner: str | None, detectors: Sequence[str], device: str):
        self.limits, self.batcher, self.device = limits, batcher, device
        default = load(pruner, device=device)
        self.default_pruner = default.name
        self._pruners = {default.name: SharedPruner(default, batcher)}
        self.detectors: dict[str, Detector] = {name: load_detector(name, device=device) for name in detectors}
        # OpenCV uses all cores for one photo already.
        self.photo_thread = ThreadPoolExecutor(1, thread_name_prefix="ananet-photos")
        # Parsing takes many times the size of the text in memory: limit how many requests are parsed at once.
        self.readers = ThreadPoolExecutor(2, thread_name_prefix="ananet-reading")

    def pruner_names(self) -> list[str]:
        """Return the names that clients may use. Other text must not reach `load`, which opens files."""
        return list(dict.fromkeys([self.default_pruner, *list_pruners()]))

    def pruner(self, name: str | None) -> SharedPruner:
        name = name or self.default_pruner
        if name not in self.pruner_names():
            raise InputError(f"pruner: expected one of {', '.join(self.pruner_names())}, got {name[:80]!r}")
        try:
            if name not in self._pruners:
                self._pruners[name] = SharedPruner(load(name, device=self.device), self.batcher)
        except InputError as error:
            # Damaged weights are not the client's fault, and the message has their path.
            raise RuntimeError(str(error)) from None
        return self._pruners[name]

    def match(self, photos: Sequence[tuple[str, bytes]], fields: dict[str, str]) -> dict[str, Any]:
        """Do what `POST /v1/match` asks for."""
        detector = fields.get("detector") or next(iter(self.detectors))
        if detector not in self.detectors:
            raise InputError(f"detector: expected one of {', '.join(self.detectors)}, got {detector[:80]!r}")
        motions = fields.get("motions", "true")
        if motions not in ("true", "false"):
            raise InputError(f"motions: expected true or false, got {motions[:80]!r}")
        matcher = PhotoMatcher(
            detector=self.detectors[detector],
            pruner=self.pruner(fields.get("pruner")),
            longest_side=self.limits.longest_side,
            motions=motions == "true",
            model=check_model(fields.get("model", "auto")[:80]),
            device=self.device,
        )
        names = [payloads.check_photo(name, data, self.limits) for name, data in photos]
        cameras = payloads.read_cameras(fields)
        return payloads.match_result(matcher(photos[0][1], photos[1][1], names=names, **cameras))


def create_app(
    *,
    pruner: str | None = PRUNER,
    detectors: Sequence[str] = PLAIN_DETECTORS,
    device: str = "auto",
    limits: Limits | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    max_wait: float = MAX_WAIT,
    max_pairs: int = MAX_PAIRS,
    examples: Mapping[str, Example] | None = None,
) -> FastAPI:
    """Return the page and the API as an ASGI application.

    Args:
        pruner: the default, as `load` takes it. Clients may choose the others of `list_pruners`, without options.
        detectors: names that clients may choose from, as `load_detector` takes them; the first is the default.
        device: of networks.
        limits: of requests.
        token: clients must send it; None for no token.
        origins: other sites that may call the API from their pages.
        hosts: names of the service beside localhost and addresses; requests for others are refused.
        max_wait, max_pairs: seconds that a pair waits for others, and pairs pruned together.
        examples: photo pairs that the page offers, by name.
    """
    limits = limits or Limits()
    if not detectors:
        raise InputError(f"detectors: expected some of {', '.join(DETECTORS.names)}, got none")
    counters, batcher, examples = Counters(), Batcher(max_wait, max_pairs), examples or {}
    service = Service(limits, batcher, pruner, detectors, device)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # All requests are finished by now.
        service.readers.shutdown()
        service.photo_thread.shutdown()
        batcher.close()

    app = FastAPI(
        title="ananet",
        version=__version__,
        summary="Two photos or their putative matches in, trustworthy matches out.",
        # Swagger and Redoc load their pages from other hosts.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, limits=limits, counters=counters, token=token, origins=origins, hosts=hosts)
    if origins:
        methods, headers = ["GET", "POST"], ["authorization"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers)

    @app.exception_handler(InputError)
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        return error_response(error if isinstance(error, HTTPException) else HTTPException(400, str(error)))

    @app.post("/v1/prune", summary="Prune matches", openapi_extra=PRUNE, responses=PRUNED)
    async def prune(request: Request) -> Response:
        """Return mask and scores of putative matches.

        The body is JSON, or an .npz file of the same arrays (`application/x-npz`) with `pruner` in the query. The
        response has the type in `Accept`, or else that of the request.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, NPZ, "application/octet-stream"):
            raise HTTPException(415, f"content-type: expected {JSON} or {NPZ}, got {kind[:80]!r}")
        data = await request.body()
        read = payloads.matches_from_json if kind == JSON else payloads.matches_from_npz
        pair, name = await unless_gone(request, service.readers.submit(read, data, limits))
        shared = await run_in_threadpool(service.pruner, name or request.query_params.get("pruner"))
        kept = await unless_gone(request, batcher.submit(shared.pruner, pair))
        result = payloads.prune_result(kept, shared.decision)
        accepted = request.headers.get("accept", "*/*")
        if NPZ in accepted or (kind != JSON and JSON not in accepted):
            file = io.BytesIO()
            np.savez(file, **result | {"mask": kept.mask, "scores": kept.scores})
            return Response(file.getvalue(), media_type=NPZ)
        return Response(json.dumps(result, allow_nan=False), media_type=JSON)

    @app.post("/v1/match", summary="Match two photos", openapi_extra=MATCH, responses=MATCHED)
    async def match(request: Request) -> Response:
        """Return keypoints, matches, scores, overlap and pose of two photos.

        Coordinates are pixels of the upright photos: their EXIF orientation is applied.
        """
        if not request.headers.get("content-type", "").lower().startswith(FORM):
            raise HTTPException(415, f"content-type: expected {FORM} with photo0 and photo1")
        async with request.form(max_files=2, max_fields=8, max_part_size=FIELD_BYTES) as form:
            fields = {name: value for name, value in form.items() if not isinstance(value, UploadFile)}
            if unknown := [name for name in fields if name not in FIELDS]:
                expected = f"photo0, photo1 and some of {', '.join(FIELDS)}"
                raise InputError(f"form: expected {expected}, got {unknown[0][:80]!r}")
            photos = []
            for name in ("photo0", "photo1"):
                photo = form.get(name)
                if not isinstance(photo, UploadFile):
                    raise InputError(f"{name}: expected a photo, got {'nothing' if photo is None else 'text'}")
                photos.append((photo.filename or name, await photo.read()))
        result = await unless_gone(request, service.photo_thread.submit(service.match, photos, fields))
        return Response(await run_in_threadpool(json.dumps, result, allow_nan=False), media_type=JSON)

    @app.get("/v1/pruners", summary="Pruners, detectors and limits")
    async def pruners() -> dict[str, Any]:
        """Pruners and detectors by name, and the limits of a request."""
        summaries = list_pruners()
        return {
            "default": service.default_pruner,
            "pruners": {name: summaries.get(name, "") for name in service.pruner_names()},
            "detectors": list(service.detectors),
            "limits": limits.to_dict(),
        }

    @app.get(HEALTH, summary="Whether the service is up")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @app.get("/metrics", summary="Counters for Prometheus")
    async def metrics() -> Response:
        now = {f"ananet_{name}_total": getattr(batcher, name) for name in ("batches", "pairs", "matches")}
        return PlainTextResponse(counters.text(now), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(describe(app.openapi()))

    @app.get("/examples", include_in_schema=False)
    async def list_examples() -> list[dict[str, Any]]:
        return [{"name": name, "title": of.title, "cameras": of.cameras} for name, of in examples.items()]

    @app.get("/examples/{name}/{number}.jpg", include_in_schema=False)
    async def example(name: str, number: str) -> Response:
        if name not in examples or number not in ("0", "1"):
            raise HTTPException(404, "Not Found")
        return Response(examples[name].photos[int(number)], media_type="image/jpeg")

    contents = {name: (files("ananet.web") / "static" / name).read_bytes() for name in STATIC}

    @app.get("/", include_in_schema=False)
    @app.get("/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        if name not in contents:
            raise HTTPException(404, "Not Found")
        return Response(contents[name], media_type=f"text/{STATIC[name]}")

    return app
