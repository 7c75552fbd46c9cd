"""Training: settings, losses, checkpoints and one loop. Runs with torch, numpy and safetensors alone."""

from ananet.training.loop import train
from ananet.training.settings import TrainSettings

__all__ = ["TrainSettings", "train"]
