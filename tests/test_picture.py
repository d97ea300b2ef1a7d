"""The README's picture shows what `corral top` shows today."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path

from command import Cli

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import picture  # noqa: E402


def texts(svg: str) -> list[str]:
    """The words of a drawing without colours and places, which differ between versions of rich."""
    return [
        html.unescape(text).replace("\xa0", " ").strip() for text in re.findall(r"<text[^>]*>(.*?)</text>", svg) if text.strip()
    ]


def test_the_picture_is_what_corral_top_draws() -> None:
    page = json.loads(picture.PAGE.read_text())
    assert texts(picture.draw(page)) == texts(picture.PICTURE.read_text()), "corral top has changed: run `make picture`"


def test_the_readme_shows_the_picture() -> None:
    assert f"](docs/{picture.PICTURE.name})" in (ROOT / "README.md").read_text()


def test_the_saved_page_has_what_the_server_reports(cli: Cli) -> None:
    """A member that `corral top` reads and the server no longer reports would leave the picture behind."""
    [here], [saved] = cli.json("top")["hosts"], json.loads(picture.PAGE.read_text())["status"]["hosts"]
    assert set(here) == set(saved) and set(here["gpus"][0]) == set(saved["gpus"][0])
