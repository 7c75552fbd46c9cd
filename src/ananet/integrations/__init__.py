"""Adapters to other programs and libraries, each imported by its own name."""
