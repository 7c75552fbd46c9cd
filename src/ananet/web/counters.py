"""Counters of the service, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

# Histogram of response times, in seconds.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Counters:
    """Requests by route and status, and their times. Routes are names of the service, never text of a client.

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
        self._within: Counter[tuple[str, float]] = Counter()

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]
        self._within.update((route, end) for end in BUCKETS if seconds <= end)

    def text(self, now: Mapping[str, float]) -> str:
        """Return all counters, and further values by name; names that end in `_total` are counters, others gauges."""
        lines = ["# TYPE ananet_requests_total counter"]
        for (route, status), count in sorted(self._requests.items()):
            lines.append(f'ananet_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE ananet_request_seconds histogram")
        for route, seconds in sorted(self._seconds.items()):
            count = sum(number for (of, _), number in self._requests.items() if of == route)
            for end in BUCKETS:
                lines.append(f'ananet_request_seconds_bucket{{route="{route}",le="{end}"}} {self._within[route, end]}')
            lines.append(f'ananet_request_seconds_bucket{{route="{route}",le="+Inf"}} {count}')
            lines.append(f'ananet_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'ananet_request_seconds_count{{route="{route}"}} {count}')
        for name, value in {"ananet_in_flight": self.in_flight, **now}.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
