"""The program that a lender runs in an allocation: it joins the server as the host of one instance, and becomes its agent.

Start it with python -m corral.node.pilot --data DIR --server ADDRESS:PORT --gpus FLAG, with the token on standard input. The host
offers only the GPUs of its allocation. The server accepts the token only while the lender says that the allocation runs, so the
pilot tries again for a while.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from msgspec import Struct

from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.model.allocation import NOT_YET, TOKEN_S
from corral.node.fingerprint import fingerprint
from corral.node.joined_host import Token, join
from corral.process.control_characters import escape_controls
from corral.process.options import parse_options

AGAIN_S = 0.5


class PilotOptions(Struct, frozen=True, rename="kebab"):
    data: str
    server: str
    gpus: str


def main() -> None:
    options = parse_options(sys.argv[1:], PilotOptions)
    _join(options, Token(sys.stdin.readline()))
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if options.gpus != "none" and not given:
        print("corral pilot: CUDA_VISIBLE_DEVICES is not set, so it offers no GPUs", file=sys.stderr)
    words = [sys.executable, "-m", "corral.node", "--data", options.data, "--gpus", options.gpus if given else "none"]
    os.execv(words[0], words + (["--only-gpus", given] if given else []))


def _join(options: PilotOptions, token: Token) -> None:
    until_s, machine = time.monotonic() + TOKEN_S, fingerprint()
    while True:
        try:
            join(Path(options.data), options.server, token, "pilot", WallClock().now_s, machine)
            return
        except (Refused, OSError) as why:
            is_final = isinstance(why, Refused) and NOT_YET not in str(why)
            if is_final or time.monotonic() > until_s:
                sys.exit(escape_controls(f"corral pilot: {why}"))
            time.sleep(AGAIN_S)


if __name__ == "__main__":
    main()
