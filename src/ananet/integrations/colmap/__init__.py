"""COLMAP databases: matches pruned, made and verified; and models of photos."""

from ananet.integrations.colmap.pruning import Doubtful, Summary, match_database, prune_database, verify_database
from ananet.integrations.colmap.sfm import Model, build_model

__all__ = ["Doubtful", "Model", "Summary", "build_model", "match_database", "prune_database", "verify_database"]
