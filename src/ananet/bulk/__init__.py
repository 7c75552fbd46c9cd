"""Millions of pairs, on one machine or a cluster."""

from ananet.bulk.run import Summary, prune_in_bulk

__all__ = ["Summary", "prune_in_bulk"]
