"""Web page and HTTP service (extra `web`)."""
