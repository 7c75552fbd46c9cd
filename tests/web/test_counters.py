from ananet.web.counters import BUCKETS, Counters


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
    assert within == sorted(within) and within[:2] == [1, 2] and within[-1] == 3
    assert values['ananet_request_seconds_bucket{route="/v1/prune",le="+Inf"}'] == "4"
    assert values['ananet_request_seconds_count{route="/v1/prune"}'] == "4"
    assert float(values['ananet_request_seconds_sum{route="/v1/prune"}']) == 1000.371
    assert values["ananet_in_flight"] == "3"
    assert "# TYPE ananet_batches_total counter\nananet_batches_total 12\n" in text
    assert "# TYPE ananet_in_flight gauge" in text
