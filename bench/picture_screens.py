"""The screens of the command line, as pictures of the documentation.

`docs/pictures/responses.json` contains the responses that commands have got from a Corral (`picture.py`). This module runs each
command in a terminal, serves it the saved responses, and draws what it prints as an SVG. `tests/test_picture.py` fails if a
command prints something else than its picture shows.
"""

from __future__ import annotations

import fcntl
import html
import io
import json
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
RESPONSES = FOLDER / "responses.json"
ROWS = 40
CORRAL = (sys.executable, "-m", "corral")


class Screen(NamedTuple):
    """A command, and the number of columns of its terminal."""

    words: tuple[str, ...]
    columns: int

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.words[0]}-{self.columns}.svg"


WIDTHS = (80, 120, 200)
SCREENS = [
    *(Screen(("ps",), columns) for columns in WIDTHS),
    *(Screen(("top", "--once"), columns) for columns in WIDTHS),
    Screen(("history",), 120),
    Screen(("show", "baseline"), 120),
]

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
CHARACTER_PX = 12.2  # the width of a character in the SVGs of rich
SPACE = "&#160;"
WIDE_GAP = re.compile(f"(^(?:{SPACE})+|(?:{SPACE}){{2,}})")
TEXT = re.compile(r'(<text class="[^"]*-r[0-9]+" )x="([0-9.]+)" (y="[0-9.]+") textLength="[0-9.]+" ([^>]*)>([^<]*)</text>')

Respond = Callable[["Request"], Any]


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def key(self) -> str:
        """The request in the file of the responses: `GET /metrics`, or `ListTasks {"cluster": "default"}`."""
        target = self.headers.get("x-amz-target", "").rpartition(".")[2]
        return f"{target} {json.dumps(json.loads(self.body), sort_keys=True)}" if target else f"{self.method} {self.path}"


def write_pictures() -> None:
    for screen, text in printed(SCREENS):
        screen.path.write_text(draw(screen, text))
        print(f"wrote {screen.path}")


def printed(screens: list[Screen], corral: Sequence[str] = CORRAL) -> Iterator[tuple[Screen, str]]:
    """Run commands with the saved responses. Yield what each prints."""
    saved = json.loads(RESPONSES.read_text())
    missing: list[str] = []

    def respond(request: Request) -> Any:
        if request.key not in saved["responses"]:
            missing.append(request.key)
        return saved["responses"].get(request.key)

    with serve(respond, saved["date"]) as url:
        for screen in screens:
            text = run_in_terminal(screen, url, corral)
            assert not missing, f"corral {screen.words[0]} has sent a new request: run `make picture`: {missing}"
            yield screen, text


@contextmanager
def serve(respond: Respond, date: str) -> Iterator[str]:
    """Serve responses, all at the same time of the day. Yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            content = respond(Request(self.command, self.path, headers, self.rfile.read(int(headers.get("content-length", 0)))))
            body = json.dumps(content).encode()
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def date_time_string(self, timestamp: float | None = None) -> str:
            return date

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_in_terminal(screen: Screen, url: str, corral: Sequence[str] = CORRAL) -> str:
    """Return what a command prints in a terminal of this width."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "TZ": "UTC", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIA0000000000000000", "AWS_SECRET_ACCESS_KEY": "-",
    }  # fmt: skip
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, screen.columns, 0, 0))
    process = subprocess.Popen([*corral, *screen.words], env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.wait() == 0, text
    return text.replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the command has ended
        return b""


def draw(screen: Screen, text: str) -> str:
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    lines = [Text.from_ansi(line) for line in text.splitlines()]
    assert all(line.cell_len <= screen.columns for line in lines), f"a line is wider than {screen.columns} columns"
    for line in lines:
        console.print(line, soft_wrap=True)
    title = f"corral {' '.join(word for word in screen.words if word != '--once')}"
    drawn = console.export_svg(title=title, theme=MONOKAI, code_format=FORMAT, unique_id=screen.path.stem)
    return TEXT.sub(_at_columns, drawn)


def _at_columns(match: re.Match[str]) -> str:
    """Draw each part between wide gaps at its own place. So columns are aligned although fonts differ, and although some programs
    do not draw spaces at the beginning of a text."""
    begin, x, y, more, text = match.groups()
    drawn, column = "", 0
    for part in WIDE_GAP.split(text.strip()):
        bare = part.removesuffix(SPACE) if not part.startswith(SPACE) else ""
        if bare:
            place, length = (f"{each:.1f}" for each in (float(x) + column * CHARACTER_PX, _cells(bare) * CHARACTER_PX))
            drawn += f'{begin}x="{place}" {y} textLength="{length}" {more}>{bare}</text>\n'
        column += _cells(part)
    return drawn


def _cells(text: str) -> int:
    return len(html.unescape(text))
