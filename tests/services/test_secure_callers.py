"""What a caller with TLS gets: https in the URLs of its responses."""

from __future__ import annotations

from random import Random

import pytest

from corral.access.caller import Caller
from corral.aws import Request
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import ROOT, role_session
from corral.model.settings import Settings
from corral.services.ecr.repository_names import registry_url
from corral.store import Store


def caller(url: str) -> Caller:
    principal = role_session("123456789012", "train", "me", ROOT)
    return Caller("123456789012", "us-east-1", principal, endpoint_url=url, secure=url.startswith("https"))


@pytest.fixture(scope="module")
def tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


@pytest.mark.parametrize(
    ("url", "registry"),
    [
        ("https://box:4566", "https://box:4566"),
        ("https://box", "https://box:443"),
        ("http://box:4566", "http://box:4566"),
        ("https://127.0.1.1:4566", "http://localhost:4566"),  # Docker reaches localhost without TLS
        ("", "http://localhost:4566"),
    ],
)
def test_the_registry_has_the_scheme_of_the_caller(tx: Tx[Store], url: str, registry: str) -> None:
    assert registry_url(tx, caller(url)) == registry


def test_the_scheme_of_a_request() -> None:
    assert Request("GET", "/", "", {}, b"").scheme == "http"
    assert Request("GET", "/", "", {}, b"", is_secure=True).scheme == "https"
