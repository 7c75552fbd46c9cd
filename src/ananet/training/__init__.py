"""Training ANA-Net: settings, losses, checkpoints and one loop. Runs with torch, numpy and safetensors alone."""
