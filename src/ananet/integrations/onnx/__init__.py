"""Trained networks as ONNX files."""

from ananet.integrations.onnx.exporter import describe, export

__all__ = ["describe", "export"]
