"""bob tries to see, change, stop and use what alice owns. `bench/people.py` does it from other machines, and with all attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Corral
from people.attempts import WORKS, Actor, controls, results
from people.contents import changes, settled
from people.refusals import Stranger
from people.setting import HOLES, OWN_STACKS, SHORT, add_user, prepare, worlds_of
from people.world import names_for
from raw_aws import Connection, RawRequest

REQUESTS = 500
WRONG_URLS = (("/of-%F0%9F%9-x", ""), ("/bucket/%F0%9F%9", "ownershipControls"), ("/bucket", "list-type=2&prefix=%FF"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Corral]:
    """A Corral of its own, because the tests compare the content of all databases."""
    made = Corral(tmp_path / "data", "sim:2", "--runtime", "process").start()
    try:
        yield made
    finally:
        made.clear()


def root_of(corral: Corral) -> Actor:
    return Actor("root", corral.url, corral.keys["access_key"], corral.keys["secret_key"])


def test_a_user_reaches_nothing_of_another(own: Corral) -> None:
    root = root_of(own)
    prepare(root)
    alice, bob = (add_user(root, name, "users") for name in ("alice", "bob"))
    worlds = worlds_of(root, {"alice": alice, "bob": bob}, owners=("alice", "bob"))
    more = {"alice_key": alice.access_key}
    before, names = settled(own.data), names_for("bob", "alice", worlds) | more
    found = [(each, outcome) for each, outcome in results(SHORT, bob, names)]
    wrong = [f"bob: {each.name}: {why}" for each, outcome in found if (why := each.why_wrong(outcome, names))]
    assert [each for each in changes(before, settled(own.data)) if not each.startswith(OWN_STACKS)] == []
    done = [*controls(SHORT, alice, names_for("alice", "alice", worlds) | more)]
    wrong += [f"alice: {each.name}: {outcome}" for each, outcome in done if outcome.kind != WORKS]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 130 and len(done) > 80 and {each.name for each, _ in found} >= HOLES
    assert "Traceback" not in own.log()


def test_requests_of_a_user_without_permissions_are_refused(own: Corral) -> None:
    stranger = Stranger(own, add_user(root_of(own), "dave"), "few")
    asyncio.run(stranger.build())
    own.stop_tasks()
    before = settled(own.data)
    asyncio.run(stranger.run(REQUESTS, "1"))
    assert not stranger.found.failures, "\n\n".join(stranger.found.failures)
    assert changes(before, settled(own.data)) == []
    assert stranger.found.denied > REQUESTS / 2 and "Traceback" not in own.log()


def test_a_url_that_is_no_text_is_a_validation_error(own: Corral) -> None:
    """The permission needs the names in the URL before the handler parses them."""
    dave = add_user(root_of(own), "dave")

    async def codes() -> list[tuple[int, str]]:
        connection = Connection(dave)  # type: ignore[arg-type]
        answers = [await connection(RawRequest("s3", "GET", path, query)) for path, query in WRONG_URLS]
        await connection.close()
        return [(answer.status, answer.code or "") for answer in answers]

    assert asyncio.run(codes()) == [(400, "InvalidArgument")] * len(WRONG_URLS)
    assert "Traceback" not in own.log()
