import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

from ananet.cli.main import main
from ananet.cli.web import TOKEN, examples


def test_wrong_arguments(run, monkeypatch):
    for arguments, message in (
        (("--port", "99999"), "--port: expected a whole number from 0 to 65535"),
        (("--host", "999.1.1.1"), "--host and --port: expected an address to listen at"),
        (("--detectors", "nonsense"), "detector: expected one of"),
        (("--detectors", ","), "detectors: expected some of"),
        (("--pruner", "nonsense"), "pruner: expected one of"),
        (("--max-requests", "0"), "--max-requests: expected a whole number of at least 1"),
        (("--batch-wait", "-1"), "--batch-wait: expected a positive number"),
    ):
        code, _, err = run("web", *arguments)
        assert code == 2 and message in err
    monkeypatch.setenv(TOKEN, "")
    code, _, err = run("web")
    assert code == 2 and f"{TOKEN}: expected printable ASCII characters, got nothing" in err


def test_a_missing_package(monkeypatch, capsys):
    monkeypatch.setattr("ananet.cli.web.find_spec", lambda name: None)
    assert main(["web"]) == 2
    assert "extra 'web'" in capsys.readouterr().err
    assert examples() == {}


def test_example_pairs():
    made = examples()
    assert set(made) == {"motorcycle", "motions", "different"}
    assert all(photo.startswith(b"\xff\xd8") for example in made.values() for photo in example.photos)


@pytest.fixture
def service():
    """A service in a process of its own, and its address."""
    command = [sys.executable, "-m", "ananet", "web", "--port", "0", "--device", "cpu", "--pruner", "ratio"]
    command += ["--allow-host", "matches.example"]
    environment = {**os.environ, TOKEN: "secret", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            break
    else:
        pytest.fail("the service did not start")
    yield process, found.group()
    process.kill()
    process.wait()


def test_silent_connections_and_names(service):
    _, address = service
    host, port = address.removeprefix("http://").split(":")
    asked = {"points0": [[1, 2]], "points1": [[3, 4]], "ratio": [0.5]}
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    assert httpx.get(f"{address}/healthz").status_code == 200
    headers = {"Authorization": "bearer secret"}
    assert httpx.post(f"{address}/v1/prune", json=asked, headers=headers).status_code == 200
    for name, status in (("evil.example", 403), ("matches.example", 200), (f"localhost:{port}", 200)):
        headers |= {"Host": name, "Origin": f"http://{name}"}
        assert httpx.post(f"{address}/v1/prune", json=asked, headers=headers).status_code == status
    for connection in silent:
        connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_clients_that_die_and_a_service_that_is_told_to_stop(service):
    process, address = service
    headers = {"Authorization": "Bearer secret"}
    host, port = address.removeprefix("http://").split(":")
    # Half a request, a whole one, and then nothing more from the client.
    for body in (b"{", b'{"points0": [], "points1": []}'):
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /v1/prune HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer secret\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 30\r\n\r\n"
            client.sendall(head.encode() + body)
    points = np.random.default_rng(0).uniform(0, 600, (50, 2)).tolist()
    asked = {"points0": points, "points1": points, "ratio": [0.5] * 50}
    assert httpx.post(f"{address}/v1/prune", json=asked, headers=headers).status_code == 200

    photos = examples()["motorcycle"].photos
    files = {f"photo{number}": (f"{number}.jpg", photo) for number, photo in enumerate(photos)}
    answers = []

    def match():
        answers.append(httpx.post(f"{address}/v1/match", files=files, headers=headers, timeout=60))

    asking = threading.Thread(target=match)
    asking.start()
    for _ in range(500):
        if "ananet_in_flight 1\n" in httpx.get(f"{address}/metrics", headers=headers).text:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    asking.join(60)
    assert answers[0].status_code == 200 and answers[0].json()["kept"] > 100
    assert process.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/healthz")
