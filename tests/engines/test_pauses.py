"""Pauses of runs: the contract of both engines, and of the process engine with and without cgroups that freeze."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.drivers import Driver
from engines.pausing import PausingDriver


@pytest.fixture
def pausing(driver: Driver) -> Iterator[PausingDriver]:
    pausing = PausingDriver(driver)
    yield pausing
    pausing.close()


def test_a_paused_run_makes_no_progress_and_continues(pausing: PausingDriver) -> None:
    pausing.start("one")
    answer = pausing.pause("one")
    assert (answer.paused, answer.why_not, answer.moved_bytes) == (True, "", 2**30)
    before = pausing.count("one")
    assert pausing.stands_still("one")
    assert pausing.count("one") <= before + 1
    answer = pausing.resume("one")
    assert (answer.paused, answer.why_not, answer.moved_bytes) == (False, "", 2**30)
    pausing.counts_on("one")
