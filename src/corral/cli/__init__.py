"""The command line. `commands.py` has the table of commands."""
