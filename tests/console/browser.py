"""The page of the console in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, Error, Locator, Page, Playwright, expect

from harness import Corral

DEADLINE_MS = 60_000
# The browser itself prints errors of the network: the server is down, or another test has changed the networks of the machine.
# They are no errors of the page, which continues.
NETWORK = "net::ERR_"
REFUSED = "the server responded with a status of 4"  # which the browser prints, too
EVIL = "<img src=x onerror=alert(1)>"
REBOUND = "rebound.example"  # a name on the internet that leads to this machine


class Console:
    """The page in the browser, and the server behind it."""

    def __init__(self, corral: Corral, page: Page) -> None:
        self.corral, self.page = corral, page
        self.errors: list[str] = []
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _note(self, text: str) -> None:
        if NETWORK not in text:
            self.errors.append(text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.corral.console_port}/"

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}#/{path}")
        expect(self.page.locator("main h1")).to_be_visible()

    def new_tab(self, title: str) -> Page:
        """Open another tab of the same session, and wait for its title."""
        tab = self.page.context.new_page()
        load(tab, self.url, tab.locator("main h1", has_text=title))
        return tab

    def press(self, name: str, confirm: str | None = None) -> None:
        """Press a button, and the button of its dialog."""
        self.page.get_by_role("button", name=name, exact=True).click()
        if confirm:
            dialog = self.page.get_by_role("dialog")
            dialog.get_by_role("button", name=confirm, exact=True).click()
            expect(dialog).to_have_count(0)

    def restart_server(self) -> None:
        """Kill the server while the page is open. The page says so, and continues by itself when the server has started again."""
        connection = self.page.locator("#connection")
        self.corral.kill("corral.server")
        expect(connection).to_contain_text("does not answer")
        self.corral.start()
        expect(connection).to_have_text("live")

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Calls inside may be refused."""
        before = len(self.errors)
        yield
        self.errors[before:] = [error for error in self.errors[before:] if REFUSED not in error]

    @contextmanager
    def downloaded(self, name: str) -> Iterator[list[bytes]]:
        content: list[bytes] = []
        with self.page.expect_download() as download:
            yield content
        assert download.value.suggested_filename == name
        content.append(Path(download.value.path()).read_bytes())


def launched(playwright: Playwright) -> Browser:
    """Start Debian's chromium. A machine without user namespaces and a small /dev/shm must do."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is missing: `make test-packages` installs it"
    expect.set_options(timeout=DEADLINE_MS)
    rules = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"
    return playwright.chromium.launch(
        executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", rules]
    )


def load(page: Page, url: str, shown: Locator) -> None:
    """Load a page until it shows this. If another test changes the networks of the machine now, the browser gives up requests."""
    for timeout_ms in (DEADLINE_MS / 4, DEADLINE_MS / 4, DEADLINE_MS):
        with suppress(Error, AssertionError):
            page.goto("about:blank")
            page.goto(url)
            expect(shown).to_be_visible(timeout=timeout_ms)
            return
    expect(shown).to_be_visible()


def opened_with(corral: Corral, browser: Browser, code: str, name: str) -> Console:
    """Open a link in a context of its own, and wait for the page of the person with this name."""
    page = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(DEADLINE_MS)
    console = Console(corral, page)
    load(page, f"{console.url}#{code}", page.locator("#identity", has_text=name))
    console.errors.clear()
    assert code not in page.url  # neither the address nor the history has the code
    return console
