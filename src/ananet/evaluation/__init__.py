"""Measuring: metrics on arrays, predictions in files, scores, tables, plots, speed, and a look inside the network."""
