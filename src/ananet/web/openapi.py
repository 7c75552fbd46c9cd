"""The OpenAPI description of the service, and a page made from it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

JSON, NPZ, FORM = "application/json", "application/x-npz", "multipart/form-data"


def _described(required: Iterable[str], **properties: str) -> dict[str, Any]:
    described = {name: {"description": words} for name, words in properties.items()}
    return {"type": "object", "required": list(required), "properties": described}


_MATCH_FIELDS = {
    "ratio": "[N] distance to the nearest descriptor over the distance to the second nearest, or null",
    "mutual": "[N] whether both descriptors are nearest neighbours of each other, or null",
    "keypoint_sizes0": "[N] diameters of the keypoints in the first image, or null",
    "keypoint_sizes1": "[N] diameters in the second image, or null",
    "angles0": "[N] orientations of the keypoints in the first image in radians, or null",
    "angles1": "[N] orientations in the second image, or null",
    "indices": "[N x 2] indices of the keypoints, or null",
}
_MATCHES = _described(
    ["points0", "points1"],
    points0="[N x 2] pixels (x, y) in the first image",
    points1="[N x 2] pixels of the same matches in the second image",
    K0="[3 x 3] camera matrix of the first image",
    K1="[3 x 3] camera matrix of the second image",
    image_size0="(width, height) of the first image, needed without a camera matrix",
    image_size1="(width, height) of the second image",
    scores="[N] confidence of the matcher",
    **_MATCH_FIELDS,
    pruner="a name from /v1/pruners (in JSON; for .npz in the query)",
)
FIELDS = {
    "detector": "a name from /v1/pruners",
    "pruner": "a name from /v1/pruners",
    "focal": "focal length of both photos in pixels, or auto to find it from the matches where EXIF has none",
    "K0": "camera of the first photo as fx,fy,cx,cy",
    "K1": "camera of the second photo as fx,fy,cx,cy",
    "model": "auto, essential, fundamental or homography: the geometry to estimate (default: auto, by the evidence)",
    "motions": "true or false: find which matches move together (default: true)",
}
_PHOTOS = {"photo0": "a JPEG, PNG or WebP file", "photo1": "a JPEG, PNG or WebP file"}
_ERRORS = {
    400: "Wrong input",
    401: "The token is missing or wrong",
    403: "The request comes from a page of another site, or calls the service by a name that it does not know",
    413: "The request is too large",
    415: "Unsupported content type",
    429: "Too many requests at a time",
    503: "Too many connections of one client",
    504: "It took too long",
}
_PRUNED_FIELDS = {
    "pruner": "name of the pruner",
    "threshold": "score above which a match is kept",
    "mask": "[N] whether a match is kept",
    "scores": "[N] probability that a match is right",
}


def _responses(description: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    error = {JSON: {"schema": _described(["error"], error="what was expected and what was sent")}}
    result: dict[str, Any] = {"description": description, "content": {JSON: {"schema": schema}}}
    return {200: result, **{status: {"description": words, "content": error} for status, words in _ERRORS.items()}}


PRUNED = _responses("Mask and scores", _described(_PRUNED_FIELDS, **_PRUNED_FIELDS))
PRUNE = {
    "requestBody": {"required": True, "content": {kind: {"schema": _MATCHES} for kind in (JSON, NPZ)}},
    "parameters": [{"name": "pruner", "in": "query", "schema": {"type": "string"}}],
}
_MATCHED = _described(
    (),
    photos="name, width, height and number of keypoints of each photo",
    detector="name of the detector",
    **_PRUNED_FIELDS,
    matches="number of matches, N",
    kept="number of kept matches",
    overlap="whether the photos show the same scene: found, probability, reasons, consistent, tested, "
    "log10_false_alarms, summary",
    cameras="source (given, exif, found or null), K0, K1, and doubt if they are implausible",
    pose="R and t (X1 = R X0 + t, t of length 1), E, inliers, parallax_degrees, rotation_only, estimator, "
    "pose_threshold, match_selection; or null",
    pose_summary="how the camera moved, in words",
    model="essential, fundamental or homography, whichever the matches have; or null",
    model_inliers="number of matches that agree with the model",
    model_summary="the model in words",
    criterion="GRIC of the models that were compared, lower is better",
    fundamental="[3 x 3] F with p1^T F p0 = 0 in pixels; null if none is determined",
    homography="[3 x 3] H with p1 ~ H p0 in pixels, of one plane unless it is the model; or null",
    motions="which matches move together: count, none, motions; or null",
    refined="null",
    milliseconds="time of each step",
    points0="[N x 2] pixels (x, y) in the first photo, upright",
    points1="[N x 2] pixels in the second photo",
    **_MATCH_FIELDS,
    motion_labels="[N] motion of each match, -1 for none; or null",
    conflicting="[N] whether a match shares a point with a better one and ends elsewhere in the other photo",
)
MATCHED = _responses("Matches, scores, overlap and pose", _MATCHED)
_BODY = {FORM: {"schema": _described(_PHOTOS, **_PHOTOS, **FIELDS)}}
MATCH = {"requestBody": {"required": True, "content": _BODY}}


def describe(openapi: dict[str, Any]) -> str:
    """Return the description of the API as a page."""
    title, version, summary = (escape(openapi["info"][name]) for name in ("title", "version", "summary"))
    parts = [f"<h1>{title} {version}</h1><p>{summary} The same for programs: "]
    parts.append('<a href="/openapi.json">openapi.json</a>. <a href="/">The page</a>.</p>')
    for path, methods in openapi["paths"].items():
        for method, of in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code> {escape(of['summary'])}</h2>")
            parts.append(f"<p>{escape(of.get('description', '')).replace('`', '')}</p>")
            for kind, body in of.get("requestBody", {}).get("content", {}).items():
                parts.append(f"<h3>Body: {escape(kind)}</h3>{_fields(body['schema'])}")
            for status, response in of["responses"].items():
                parts.append(f"<h3>{escape(status)}: {escape(response['description'])}</h3>")
                parts += [_fields(body.get("schema", {})) for body in response.get("content", {}).values()]
    style = '<link rel="stylesheet" href="/style.css"><link rel="icon" href="data:,">'
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>ananet: API</title>{style}'
    return f'<!doctype html><html lang="en"><head>{head}</head><body class="words">{"".join(parts)}</body></html>'


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{'required' if name in required else ''}</td>"
        f"<td>{escape(of.get('description', ''))}</td></tr>"
        for name, of in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""
