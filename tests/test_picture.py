"""The pictures of the documentation show what the commands print today."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import forkserver
from command import Cli

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import picture_screens  # noqa: E402

PICTURE_BYTES_MAX = 60_000


def words(svg: str) -> list[str]:
    """The words of a drawing without colours and places, which differ between versions of rich."""
    return " ".join(html.unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg)).split()


def test_the_pictures_are_what_the_commands_print() -> None:
    for screen, text in picture_screens.printed(picture_screens.SCREENS, [str(forkserver.program("corral"))]):
        drawn, saved = picture_screens.draw(screen, text), screen.path.read_text()
        assert words(drawn) == words(saved), f"corral {screen.words[0]} has changed: run `make redraw`"
        assert len(saved) <= PICTURE_BYTES_MAX


@pytest.mark.parametrize("screen", picture_screens.SCREENS, ids=lambda screen: screen.path.stem)
def test_a_page_shows_the_picture(screen: picture_screens.Screen) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"!\[[^\]]+\]\((?:docs/)?pictures/{screen.path.name}\)", page.read_text()) for page in pages)


def test_the_saved_responses_have_what_the_server_reports(cli: Cli) -> None:
    """A member that `corral top` reads and the server no longer reports would leave the picture behind."""
    saved = json.loads(picture_screens.RESPONSES.read_text())["responses"]
    page: dict[str, Any] = next(content for request, content in saved.items() if request.startswith("GetStatus"))
    [here], [drawn] = cli.json("top")["hosts"], page["hosts"]
    assert set(here) == set(drawn) and set(here["gpus"][0]) == set(drawn["gpus"][0])
