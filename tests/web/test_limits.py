import asyncio
import time
from concurrent.futures import Future

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request

from ananet import InputError
from ananet.web.app import create_app
from ananet.web.limits import BUCKETS, ClientGoneError, Counters, Guard, Limits, unless_gone

POINTS = {"points0": [[0, 0], [9, 9]], "points1": [[1, 1], [5, 5]], "ratio": [0.3, 0.9], "pruner": "ratio"}


def client_of(**options) -> TestClient:
    return TestClient(
        create_app(pruner="ratio", device="cpu", **options), base_url="http://localhost", raise_server_exceptions=False
    )


def test_limits_are_checked():
    for name in ("upload_bytes", "pixels", "matches", "in_flight", "connections", "longest_side"):
        with pytest.raises(InputError, match=name):
            Limits(**{name: 0})
    with pytest.raises(InputError, match="seconds"):
        Limits(seconds=0.0)


def test_size_of_a_request():
    with client_of(limits=Limits(upload_bytes=1000)) as client:
        assert client.post("/v1/prune", json=POINTS).status_code == 200
        refused = client.post("/v1/prune", json={**POINTS, "scores": [0.123456789] * 500})
        assert refused.status_code == 413
        assert refused.json() == {"error": "request: expected at most 1,000 bytes, got more"}

        # Without a length, what comes is counted.
        def chunks():
            for _ in range(100):
                yield b" " * 100

        refused = client.post("/v1/prune", content=chunks(), headers={"content-type": "application/json"})
        assert refused.status_code == 413
        wrong = client.post("/v1/prune", content=b"{}", headers={"content-length": "-5"})
        assert wrong.status_code == 413


def test_a_token_closes_the_service():
    with client_of(token="secret") as client:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            for path in ("/v1/pruners", "/metrics"):
                assert client.get(path, headers=given).status_code == 401
            refused = client.post("/v1/prune", json=POINTS, headers=given)
            assert refused.status_code == 401 and "secret" not in refused.text
            assert refused.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer secret"}
        assert client.post("/v1/prune", json=POINTS, headers=right).status_code == 200
        # The page has to be there to ask for the token, and whoever watches over the service need not know it.
        assert client.get("/").status_code == client.get("/healthz").status_code == 200


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_the_case_of_the_scheme_does_not_matter_that_of_the_token_does(scheme):
    with client_of(token="Secret") as client:
        assert client.get("/v1/pruners", headers={"Authorization": f"{scheme} Secret"}).status_code == 200
        assert client.get("/v1/pruners", headers={"Authorization": f"{scheme} secret"}).status_code == 401
        assert client.get("/v1/pruners", headers={"Authorization": "Basic Secret"}).status_code == 401


def test_sites_that_point_their_name_here():
    with client_of(hosts=["matches.example"]) as client:
        for host in (
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "matches.example.evil",
            "",
            "[::1",
            "1.2",
        ):
            headers = {"Host": host, "Origin": f"http://{host}"}
            for refused in (client.post("/v1/prune", json=POINTS, headers=headers), client.get("/", headers=headers)):
                assert refused.status_code == 403 and "expected one of localhost, 127.0.0.1" in refused.json()["error"]
        for host in (
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:8000",
            "[::1]:8000",
            "192.168.1.7",
            "Matches.example.:80",
        ):
            headers = {"Host": host, "Origin": f"http://{host}"}
            assert client.post("/v1/prune", json=POINTS, headers=headers).status_code == 200


def test_pages_of_other_sites():
    elsewhere = {"Origin": "https://elsewhere.example"}
    with client_of() as client:
        assert client.post("/v1/prune", json=POINTS, headers=elsewhere).status_code == 403
        for origin in ("null", "http://[::1", "localhost", "://"):
            assert client.post("/v1/prune", json=POINTS, headers={"Origin": origin}).status_code == 403
        own = client.post("/v1/prune", json=POINTS, headers={"Origin": "http://localhost"})
        assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    with client_of(origins=["https://elsewhere.example"], token="secret") as client:
        allowed = client.post("/v1/prune", json=POINTS, headers={**elsewhere, "Authorization": "Bearer secret"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://elsewhere.example"
        asked = {
            **elsewhere,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        assert client.options("/v1/prune", headers=asked).status_code == 200
        assert client.post("/v1/prune", json=POINTS, headers={"Origin": "https://other.example"}).status_code == 403


def test_headers_that_keep_other_hosts_out(client):
    for path in ("/", "/page.js", "/docs", "/healthz", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


async def called(guard: Guard, path: str = "/v1/prune", body: bytes = b"") -> list[dict]:
    """What the guard sends to one request."""
    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
    await guard(scope, receive, send)
    return sent


def test_requests_beyond_the_limit_are_told_to_come_again():
    async def run():
        may_go = asyncio.Event()

        async def app(scope, receive, send):
            await may_go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        guard = Guard(app, Limits(in_flight=2), Counters())
        working = [asyncio.create_task(called(guard)) for _ in range(2)]
        await asyncio.sleep(0)
        assert guard.counters.in_flight == 2
        refused = await called(guard)
        assert refused[0]["status"] == 429 and (b"retry-after", b"1") in refused[0]["headers"]
        may_go.set()
        assert [(await task)[0]["status"] for task in working] == [200, 200]
        assert guard.counters.in_flight == 0
        assert (await called(guard))[0]["status"] == 200
        assert 'status="429"} 1' in guard.counters.text({})

    asyncio.run(run())


def test_a_request_that_takes_too_long():
    async def run():
        ended = []

        async def app(scope, receive, send):
            try:
                await asyncio.sleep(20)
            finally:
                ended.append(True)

        guard = Guard(app, Limits(seconds=0.05), Counters())
        start = time.monotonic()
        sent = await called(guard)
        assert sent[0]["status"] == 504 and b"within 0.05 seconds" in sent[1]["body"]
        assert time.monotonic() - start < 15 and ended and guard.counters.in_flight == 0

    asyncio.run(run())


def test_a_failure_tells_nothing_of_the_inside(caplog):
    async def app(scope, receive, send):
        raise RuntimeError("/home/someone/weights.safetensors is damaged")

    sent = asyncio.run(called(Guard(app, Limits(), Counters())))
    assert sent[0]["status"] == 500 and b"someone" not in sent[1]["body"]
    assert "a request failed" in caplog.text


def test_a_client_that_hangs_up_in_the_middle_leaves_no_trace_in_the_log(caplog):
    async def app(scope, receive, send):
        await Request(scope, receive).body()

    async def run():
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
        guard, sent = Guard(app, Limits(), Counters()), []

        async def receive():
            return messages.pop(0)

        await guard({"type": "http", "method": "POST", "path": "/v1/prune", "headers": []}, receive, sent.append)
        assert not sent and guard.counters.in_flight == 0
        assert 'status="499"} 1' in guard.counters.text({})

    asyncio.run(run())
    assert not caplog.text


@pytest.mark.parametrize("leaves", [True, False])
def test_nobody_works_for_a_client_that_has_gone(leaves):
    async def run():
        answer: Future[int] = Future()

        async def receive():
            if not leaves:
                await asyncio.sleep(20)
            return {"type": "http.disconnect"}

        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
        if leaves:
            with pytest.raises(ClientGoneError):
                await unless_gone(request, answer)
            await asyncio.sleep(0)
            assert answer.cancelled()
        else:
            asyncio.get_running_loop().call_later(0.01, answer.set_result, 7)
            assert await unless_gone(request, answer) == 7

    asyncio.run(run())


def test_what_was_counted_comes_out_as_prometheus_reads_it():
    counters = Counters()
    for status, seconds in ((200, 0.07), (200, 0.3), (400, 0.001), (504, 1000.0)):
        counters.answered("/v1/prune", status, seconds)
    counters.in_flight = 3
    text = counters.text({"ananet_batches_total": 12})
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['ananet_requests_total{route="/v1/prune",status="200"}'] == "2"
    within = [int(values[f'ananet_request_seconds_bucket{{route="/v1/prune",le="{end}"}}']) for end in BUCKETS]
    # Each class holds all that are quicker.
    assert within == sorted(within) and within[:2] == [1, 2] and within[-2:] == [3, 4]
    assert values['ananet_request_seconds_count{route="/v1/prune"}'] == "4"
    assert float(values['ananet_request_seconds_sum{route="/v1/prune"}']) == 1000.371
    assert values["ananet_in_flight"] == "3"
    assert "# TYPE ananet_batches_total counter\nananet_batches_total 12\n" in text
    assert "# TYPE ananet_in_flight gauge" in text
