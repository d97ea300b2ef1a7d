"""Starts the command line. `corral` and `python -m corral` call `main`."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line, and run it.

    During the imports, Ctrl-C ends the process at once. A KeyboardInterrupt would print a traceback, and in some callbacks Python
    ignores it. `Commands.resolve_command` enables KeyboardInterrupt again.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from corral.cli import main as run_command

    run_command(prog_name="corral")


if __name__ == "__main__":
    main()
