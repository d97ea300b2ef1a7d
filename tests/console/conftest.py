"""Fixtures: a browser, and in it the page of the root user, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from console.browser import Console, launched, opened_with
from harness import Corral


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def opened(corral: Corral, browser: Browser) -> Console:
    return opened_with(corral, browser, corral.own("CreateConsoleLink")["code"], "root")


@pytest.fixture
def console(opened: Console) -> Iterator[Console]:
    yield opened
    errors, opened.errors = opened.errors, []
    assert not errors
