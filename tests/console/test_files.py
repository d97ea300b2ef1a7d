"""The files of the page: small, without a build step, without scripts in HTML, and without anything from another place."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import corral
from corral.server.console.static_files import PageNotFound, StaticFiles

FOLDER = Path(corral.__file__).with_name("console")
FILES = sorted(FOLDER.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
BYTES_MAX = 1_000_000
# What makes markup or code of text.
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|createContextualFragment|\beval\b|\bFunction\("
    r"|javascript:|setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]"
)
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < BYTES_MAX
    assert {path.suffix for path in FILES} == {".html", ".css", ".js", ".svg"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_names_no_other_place_and_makes_no_markup_of_text(path: Path) -> None:
    text = path.read_text()
    assert not DANGEROUS.findall(text)
    assert not [found for found in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\"'\s]*", text) if found != NAMESPACE]


def test_the_page_has_no_scripts_and_styles_in_html() -> None:
    index = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script[^>]*>[^<]*", index) == ['<script type="module" src="/static/app.js">']
    assert not re.findall(r"<style|\sstyle=|\son\w+=", index)


def test_the_browser_gets_all_modules_at_once() -> None:
    """A module that is not preloaded is requested only when the browser has read the one that imports it."""
    index = (FOLDER / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="/static/([\w.]+\.js)"', index))
    assert named == {path.name for path in SCRIPTS}


def test_browsers_keep_the_files_of_a_version(tmp_path: Path) -> None:
    folder = tmp_path / "console"
    shutil.copytree(FOLDER, folder)
    files = StaticFiles(folder)
    first = versioned(files, "app.js")
    response = files.response(first, {})
    assert response.body == (FOLDER / "app.js").read_bytes() and "immutable" in dict(response.headers)["Cache-Control"]
    assert (
        dict(files.page({}).headers)["Cache-Control"] == dict(files.response("app.js", {}).headers)["Cache-Control"] == "no-cache"
    )
    assert versioned(files, "app.js") == first and StaticFiles(folder).response(first, {}).body == response.body
    changed = folder / "dom.js"
    changed.write_text("// changed")
    os.utime(changed, ns=(1, 1))
    assert versioned(files, "app.js") != first
    with pytest.raises(PageNotFound):
        files.response(first, {})


def versioned(files: StaticFiles, name: str) -> str:
    """Return the name of a file as the page has it, after `/static/`."""
    (found,) = set(re.findall(rf'"/static/(\w+/{re.escape(name)})"', files.page({}).body.decode()))
    return str(found)
