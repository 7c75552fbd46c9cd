"""Sources of correspondences with known geometry."""
