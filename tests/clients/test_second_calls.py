"""Each operation twice: the second call has the same result, another one, or an error, as on AWS. And errors that AWS documents.

`tests/answers/requests` has the requests. The outcomes are in the tables of `tests/answers`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from answers import requests
from answers.calls import Calls
from harness import Corral

SERVICES = [path.stem for path in sorted(Path(requests.__path__[0]).glob("[a-z]*.py"))]


@pytest.mark.parametrize("module", SERVICES)
def test_second_calls_and_refusals(corral: Corral, module: str) -> None:
    calls = Calls(corral, module.strip("_").replace("_", "-"))
    import_module(f"answers.requests.{module}").requests(calls)
    assert not calls.wrong, "\n".join(calls.wrong)
