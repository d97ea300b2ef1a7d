"""alice leaves: what she owns passes to bob, with everything that the attempts know of, on a real server."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from corral.core.owned_rows import owned_tables
from corral.reconcile.passing import HISTORY
from eventually import eventually
from people.contents import ALIVE
from people.setting import add_user, prepare, worlds_of
from people.test_attempts import own, root_of  # noqa: F401

ALICE = "user/alice"


def owners(data: Path) -> dict[str, dict[str, int]]:
    """DATABASE:TABLE → owner → number of rows, for all tables with a column `owner`."""
    found: dict[str, dict[str, int]] = {}
    for name in ALIVE:
        database = sqlite3.connect(f"file:{data / name}?mode=ro", uri=True)
        try:
            for table in owned_tables(database.execute):
                rows = database.execute(f"SELECT owner, count(*) FROM {table} GROUP BY owner")
                found[f"{name}:{table}"] = dict(rows.fetchall())
        finally:
            database.close()
    return found


def test_what_a_removed_user_owns_passes(own) -> None:  # noqa: F811
    root = root_of(own)
    prepare(root)
    alice, bob = (add_user(root, name, "users") for name in ("alice", "bob"))
    worlds_of(root, {"alice": alice, "bob": bob}, owners=("alice",))
    before = {table: found[ALICE] for table, found in owners(own.data).items() if ALICE in found}
    assert len(before) > 18, "alice owns one of everything"
    assert owners(own.data)["state.db:bucket"].keys() >= {ALICE}
    s3 = bob.client("s3")
    with pytest.raises(ClientError, match="not authorized"):
        s3.list_objects_v2(Bucket="alice-data")
    removed = own.own("RemoveUser", user="alice", to="user/bob")
    assert removed["keys"] == 1 and not removed["wasGone"] and removed["passing"]
    eventually(lambda: not own.own("RemoveUser", user="alice", to="user/bob")["passing"])
    assert {table for table, found in owners(own.data).items() if ALICE in found} <= {f"state.db:{table}" for table in HISTORY}
    assert s3.list_objects_v2(Bucket="alice-data")["Contents"]
    again = own.own("RemoveUser", user="alice", to="user/bob")
    assert again["wasGone"] and not again["passing"] and again["passed"] >= sum(before.values()) / 2
    assert "Traceback" not in own.log()
    own.stop()
    own.start()
    assert s3.list_objects_v2(Bucket="alice-data")["Contents"], "also after a start on the rows"
    new = add_user(root, "alice", "users")
    with pytest.raises(ClientError, match="not authorized"):
        new.client("s3").list_objects_v2(Bucket="alice-data")
