"""One file for each kind of data: how it is recognised and read."""
