"""`make picture`: draw `docs/top.svg`, the README's picture of `corral top`, from the real program.

It starts a Corral with four simulated GPUs, gives it tasks, waits until `corral top` has a history to show, and saves what `corral
top --json` returns in `docs/top.json`. The picture is that page, drawn by the code of `corral top`. Simulated GPUs are as busy as
the processes that hold them, so the tasks compute and sleep in turns; run it on an idle machine. `tests/test_picture.py` fails when
`corral top` draws the page differently from the picture.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI

from corral.cli.top import frame

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURE = DOCS / "top.json", DOCS / "top.svg"
COLUMNS = 124  # from 120 on there is room for everything
HISTORY_S = 125.0  # `corral top` shows two minutes
HOST_NAME = "workstation"  # the name of the machine that draws the picture is of no interest

SLICE_S = 0.2
WORK = f"""
import math, sys, time
busy = float(sys.argv[1])
while True:
    share = busy * (0.65 + 0.35 * math.sin(time.monotonic() / 7))
    until_s = time.monotonic() + {SLICE_S} * share
    while time.monotonic() < until_s:
        pass
    time.sleep({SLICE_S} * (1 - share))
"""

# One SVG without fonts from elsewhere: every reader has a monospace font.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="corral-picture-") as folder:
        page = _page(Path(folder))
    PAGE.write_text(json.dumps(page, indent=1) + "\n")
    PICTURE.write_text(draw(page))
    print(f"wrote {PAGE} and {PICTURE}")
    return 0


def draw(page: dict[str, Any]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(frame(page["status"], page["date"], COLUMNS, None))
    return console.export_svg(title="corral top", theme=MONOKAI, code_format=FORMAT, unique_id="top")


def _page(folder: Path) -> dict[str, Any]:
    """The status of a Corral that has worked for two minutes, and the time at which it was asked."""
    environment = {**os.environ, "CORRAL_DATA": str(folder / "data"), "HOME": str(folder), "TZ": "UTC"}

    def corral(*arguments: str) -> str:
        command = [sys.executable, "-m", "corral.cli", *arguments]
        return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout

    def work(name: str, gpus: int, busy: float) -> None:
        corral("run", "--detach", "--gpus", str(gpus), "--name", name, "--", sys.executable, "-c", WORK, str(busy))

    corral("up", "--detach", "--port", "0", "--gpus", "sim:4")
    try:
        work("pretrain", 2, 0.95)
        work("embed", 1, 0.5)
        work("evaluate", 2, 0.5)  # waits: one GPU is free
        time.sleep(HISTORY_S)
        status = json.loads(corral("top", "--json"))
    finally:
        corral("down", "--stop-tasks")
    for host in status["hosts"]:
        host["name"] = HOST_NAME
    return {"date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()), "status": status}


if __name__ == "__main__":
    sys.exit(main())
