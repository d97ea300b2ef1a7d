"""Many small cases in one test: to collect and to report a test takes longer than to check such a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def check_each(cases: Iterable[Case], check: Callable[[Case], object]) -> None:
    """Check all cases. Raise the exceptions of those that fail, each with the name of its case."""
    failed, count = list[BaseException](), 0
    for case in cases:
        count += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"the case {case}")
            failed.append(error)
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {count} cases failed", failed)
    assert count, "there are no cases"
