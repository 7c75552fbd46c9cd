"""Which matches move together."""

from ananet.twoview.motions.grouping import Motion, Motions, group_motions

__all__ = ["Motion", "Motions", "group_motions"]
