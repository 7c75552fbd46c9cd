"""Inference of trained networks: fast engines for networks that have one; others run as they are."""

from ananet.inference.engines import FAST_ENGINES, Engine, PlainEngine, Progress, engine_for

__all__ = ["FAST_ENGINES", "Engine", "PlainEngine", "Progress", "engine_for"]
