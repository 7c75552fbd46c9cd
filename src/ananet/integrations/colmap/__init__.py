"""COLMAP databases: matches pruned, made and verified."""

from ananet.integrations.colmap.pruning import Doubtful, Summary, match_database, prune_database, verify_database

__all__ = ["Doubtful", "Summary", "match_database", "prune_database", "verify_database"]
