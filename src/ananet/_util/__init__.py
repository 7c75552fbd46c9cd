"""Private helpers: checks of values, names with options, devices, random streams, tables, shared defaults."""
