"""Each operation twice: the second call has the same result, another one, or an error, as on AWS. And errors that AWS documents.

`tests/answers/requests` has the requests. The outcomes are in the tables of `tests/answers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from answers import requests
from answers.calls import Calls
from harness import Corral

SERVICES = [path.stem for path in sorted(Path(requests.__path__[0]).glob("[a-z]*.py"))]


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral whose door has a port that no other Corral has: a token opens it."""
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "sim:2", "--door", "127.0.0.1:0").start()
    yield running
    running.clear()


@pytest.mark.parametrize("module", SERVICES)
def test_second_calls_and_refusals(corral: Corral, module: str) -> None:
    calls = Calls(corral, module.strip("_").replace("_", "-"))
    import_module(f"answers.requests.{module}").requests(calls)
    assert not calls.wrong, "\n".join(calls.wrong)
