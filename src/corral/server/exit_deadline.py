"""Ends the server process at a deadline, whatever its other threads do.

A server that is killed loses nothing, because each response is sent after its commit. So a server that cannot end in order, for
example because a thread does not return, ends without order. These functions use threads of their own, because also the event loop
may not return.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from corral.node.node_folder import HeldPath

EXIT_MAX_S = 12.0  # `corral down` waits longer than this before it kills the server (GONE_S in `cli/server/down.py`)
EXIT_CODE = 1

log = logging.getLogger("corral.server")


def exit_within(seconds: float, exit_code: int = EXIT_CODE) -> None:
    """End the process after this time, if it still lives."""
    text = f"the server did not stop within {seconds:g} s: it ends now. No data is lost."
    timer = threading.Timer(seconds, _exit, (text, exit_code))
    timer.daemon = True
    timer.start()


def exit_when_deleted(data: Path, exit_code: int, seconds: float = EXIT_MAX_S) -> None:
    """End the process this long after the deletion or replacement of the data folder was noticed. This takes up to half as long.

    Before that, the event loop may end the process in order.
    """
    held = HeldPath(data)

    def watch() -> None:
        while not held.is_gone():
            time.sleep(seconds / 4)  # the event loop looks more often
        time.sleep(seconds)
        _exit(f"the data folder {data} was deleted or replaced, and the server did not stop: it ends now.", exit_code)

    threading.Thread(target=watch, name="deleted-folder", daemon=True).start()


def _exit(text: str, exit_code: int) -> None:
    log.error(text)
    os._exit(exit_code)
