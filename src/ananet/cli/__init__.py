"""The command line: `ananet COMMAND`. One file per command."""
