"""Documentation cannot fall behind: every served operation, server option and verb is in it, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from corral.cli import main
from corral.services import SERVICES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("service", SERVICES)
def test_every_served_operation_is_in_the_readme(service):
    [row] = [line for line in README.splitlines() if line.startswith(f"| {service} |")]
    assert set(re.findall(r"\b[A-Z][A-Za-z]+\b", row)) >= set(SERVICES[service].operations)


def test_the_readme_promises_no_operation_that_is_not_served():
    for service, served in SERVICES.items():
        [row] = [line for line in README.splitlines() if line.startswith(f"| {service} |")]
        named = set(re.findall(r"`([A-Z][A-Za-z]+)`", row))
        assert named <= set(served.operations)


def test_every_verb_and_option_is_documented():
    assert isinstance(main, click.Group)
    for name, verb in main.commands.items():
        assert f"corral {name}" in CLI, f"docs/cli.md does not mention `corral {name}`"
        for option in verb.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert any(flag in CLI for flag in option.opts), f"docs/cli.md does not mention {option.opts} of {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} → {link}"
