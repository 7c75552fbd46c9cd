"""Load test of `ananet web`: many clients on this machine, compared with `pruner.batch` in the same run.

    python benchmarks/service.py [--seconds 60] [--clients 32] [--matches 2000] [--json results.json]

The service runs in its own process on 127.0.0.1. Each client keeps one connection and sends its next pair when it has
the response to the last. Other clients disconnect in the middle of their requests. Before and after, `pruner.batch`
prunes batches of the same pairs. At the end the service gets SIGTERM while all clients wait, and must respond.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

# Pairs of a full batch, the default of the service.
FULL_BATCH = 16
# Different pairs, so that a response to the wrong client is noticed.
PAIRS = 8
# Seconds between clients that disconnect, and between measurements of memory.
DISCONNECT_EVERY, MEASURE_EVERY = 0.5, 0.5
NPZ = {"Content-Type": "application/x-npz"}


def make_pairs(matches: int) -> list[dict[str, np.ndarray]]:
    """Return matches of a rotated plane, a third of them right."""
    pairs = []
    for seed in range(PAIRS):
        rng = np.random.default_rng(seed)
        points0 = rng.uniform(0, 640, (matches, 2))
        angle = 0.1 * seed
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points1 = points0 @ turn.T + rng.normal(0, 0.5, points0.shape)
        right = rng.random(matches) < 1 / 3
        points1 = np.where(right[:, None], points1, rng.uniform(0, 640, points1.shape))
        pairs.append({
            "points0": points0.astype(np.float32), "points1": points1.astype(np.float32),
            "image_size0": np.array([640, 640]), "image_size1": np.array([640, 640]),
            "ratio": np.where(right, 0.6, 0.9).astype(np.float32), "mutual": right | (rng.random(matches) < 0.3),
        })  # fmt: skip
    return pairs


def measure_batch(pairs: list[dict[str, np.ndarray]], seconds: float) -> list[float]:
    """Return seconds of full batches."""
    import ananet

    pruner = ananet.load(device="cpu")
    given = [ananet.Correspondences(**pairs[number % PAIRS]) for number in range(FULL_BATCH)]
    pruner.batch(given[:2])
    taken: list[float] = []
    while len(taken) < 2 or sum(taken) < seconds:
        start = time.perf_counter()
        pruner.batch(given)
        taken.append(time.perf_counter() - start)
    return taken


def batch_in_own_process(matches: int, seconds: float) -> list[float]:
    """Measure in a new process, with its own memory and threads, as the service has them."""
    command = [sys.executable, __file__, "--batch-only", "--seconds", str(seconds), "--matches", str(matches)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Load:
    """The clients, and what they measured."""

    def __init__(self, address: str, pairs: list[dict[str, np.ndarray]], expected: list[np.ndarray]) -> None:
        self.host, self.port = address.removeprefix("http://").split(":")
        self.bodies = []
        for pair in pairs:
            file = io.BytesIO()
            np.savez(file, **pair)
            self.bodies.append(file.getvalue())
        self.expected = expected
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.wrong = self.lost = self.sent = self.disconnected = 0
        self.stopping = False

    async def client(self, number: int) -> None:
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        while not self.stopping:
            which = number % PAIRS
            number += 1
            self.sent += 1
            start = time.perf_counter()
            try:
                writer.write(self.head(len(self.bodies[which])) + self.bodies[which])
                await writer.drain()
                status, body = await read_response(reader)
            except (OSError, EOFError, ValueError):
                self.lost += 1
                break
            self.latencies.append(time.perf_counter() - start)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            if status == 200:
                mask = np.load(io.BytesIO(body))["mask"]
                # Rounding depends on the batch, and may change undecided matches.
                self.wrong += int((mask != self.expected[which]).mean() > 0.002)
        writer.close()

    def head(self, length: int) -> bytes:
        lines = ["POST /v1/prune HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in NPZ.items()), "", ""]).encode()

    async def disconnect(self) -> None:
        """Clients that send all or half of a request, and disconnect."""
        while not self.stopping:
            _, writer = await asyncio.open_connection(self.host, int(self.port))
            body = self.bodies[0]
            writer.write(self.head(len(body)) + body[: len(body) // (1 + self.disconnected % 2)])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.transport.abort()
            self.disconnected += 1
            await asyncio.sleep(DISCONNECT_EVERY)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    if length is None:
        raise ValueError("a response without length")
    return int(head.split()[1]), await reader.readexactly(int(length.group(1)))


def memory(process: int) -> float:
    """Resident memory in MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found.group(1)) / 1024 if found else float("nan")


async def put_under_load(load: Load, process: subprocess.Popen[str], clients: int, seconds: float) -> dict[str, Any]:
    """Run the load, then send SIGTERM while every client waits."""
    tasks = [asyncio.create_task(load.client(number)) for number in range(clients)]
    disconnecting = asyncio.create_task(load.disconnect())
    # The first responses include the time to load networks.
    while len(load.latencies) < clients:
        await asyncio.sleep(0.05)
    load.latencies.clear()
    start, used = time.perf_counter(), []
    while time.perf_counter() - start < seconds:
        await asyncio.sleep(MEASURE_EVERY)
        used.append(memory(process.pid))
    took, latencies = time.perf_counter() - start, sorted(load.latencies)
    load.stopping = True
    disconnecting.cancel()
    process.send_signal(signal.SIGTERM)
    await asyncio.gather(*tasks)
    if not latencies:
        raise SystemExit(f"no response within {seconds:g} s: take more seconds or fewer matches")
    half = len(used) // 2
    return {
        "pairs_per_second": len(latencies) / took,
        "p50": statistics.median(latencies),
        "p99": latencies[int(0.99 * (len(latencies) - 1))],
        "responses": sum(load.statuses.values()),
        "statuses": load.statuses,
        "sent": load.sent,
        "lost": load.lost,
        "wrong": load.wrong,
        "disconnected": load.disconnected,
        "memory_megabytes": {"first_half": statistics.mean(used[:half]), "second_half": statistics.mean(used[half:])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--matches", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    pairs = make_pairs(arguments.matches)
    if arguments.batch_only:
        print(json.dumps(measure_batch(pairs, arguments.seconds)))
        return

    import ananet

    load_before = os.getloadavg()[0]
    pruner = ananet.load(device="cpu")
    expected = [pruner(**pair).mask for pair in pairs]
    # Half before and half after, since other load may change.
    batches = batch_in_own_process(arguments.matches, arguments.seconds / 6)
    command = [sys.executable, "-m", "ananet", "web", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = next(found.group() for line in process.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
    # Keep reading: a full pipe would block the service.
    logged: list[str] = []
    threading.Thread(target=logged.extend, args=(process.stderr,), daemon=True).start()
    load = Load(address, pairs, expected)
    try:
        results = asyncio.run(put_under_load(load, process, arguments.clients, arguments.seconds))
        results["exit_code"] = process.wait(60)
    finally:
        process.kill()
    batches += batch_in_own_process(arguments.matches, arguments.seconds / 6)
    full = statistics.median(batches)
    results |= {
        "full_batch": full,
        "batch_pairs_per_second": FULL_BATCH * len(batches) / sum(batches),
        "errors_logged": sum("ERROR" in line or "Traceback" in line for line in logged),
        "load_average_before": load_before,
        "load_average_after": os.getloadavg()[0],
    }
    results["throughput_of_batch"] = results["pairs_per_second"] / results["batch_pairs_per_second"]
    results["p99_of_full_batch"] = results["p99"] / full
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    used = results["memory_megabytes"]
    print(f"{arguments.clients} clients, {arguments.matches} matches, {arguments.seconds:g} s, {os.cpu_count()} cores")
    print(
        f"service       {results['pairs_per_second']:.2f} pairs/s, {results['throughput_of_batch']:.2f} of pruner.batch"
    )
    print(f"pruner.batch  {results['batch_pairs_per_second']:.2f} pairs/s, {full:.2f} s for {FULL_BATCH} pairs")
    print(
        f"p50, p99      {results['p50']:.2f} s, {results['p99']:.2f} s: {results['p99_of_full_batch']:.2f} full batches"
    )
    lost, wrong = results["lost"], results["wrong"]
    print(f"responses     {results['responses']} of {results['sent']}, {lost} lost, {wrong} wrong")
    print(f"disconnected  {results['disconnected']} clients, {results['errors_logged']} errors logged")
    print(f"memory        {used['first_half']:.0f} MB, then {used['second_half']:.0f} MB")
    print(f"SIGTERM       exit code {results['exit_code']}")
    print(f"load average  {load_before:.1f} before, {results['load_average_after']:.1f} after")


if __name__ == "__main__":
    main()
