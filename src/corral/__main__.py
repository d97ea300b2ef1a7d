"""Starts the command line. `corral` and `python -m corral` call `main`."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line, and run it.

    During the imports, Ctrl-C ends the process at once. A KeyboardInterrupt would print a traceback. Python would even ignore one
    that is raised in a destructor or in a weakref callback. After the imports, `Commands.resolve_command` in `cli/` makes Ctrl-C
    raise KeyboardInterrupt again.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `corral join` starts itself again with Ctrl-C blocked
    from corral.cli.commands import main as run_command

    run_command(prog_name="corral")


if __name__ == "__main__":
    main()
