"""The tables are complete: each documented error, optional member and second call was seen, or docs/services.md explains it.

After a change of what Corral answers, make the tables again: `python -m answers` (`__main__.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from answers.completeness import gaps, unknown
from answers.contract import operations
from answers.decisions import differences, sections
from answers.tables import NEVER, read_table
from corral.operations.services import SERVICES

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("service", SERVICES)
def test_the_table_of_a_service_is_complete(service: str) -> None:
    table, listed = read_table(service), differences(service)
    assert sorted(table.errors) == operations(service)
    wrong = gaps(service, table, listed) + unknown(service, table)
    wrong += [f"matches nothing: {each}" for each in sections().get(service, []) if each not in listed.used]
    assert not wrong, "\n".join(wrong)
    files = {file for row in table.errors.values() for file in row.values()} - {NEVER}
    assert all((TESTS / file).exists() for file in files)
