"""A page and an HTTP service around the pipeline (extra `web`)."""
