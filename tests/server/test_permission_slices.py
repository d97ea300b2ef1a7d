"""The permissions of a request that names many resources are checked in slices, so that other requests do not wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import iam_user
from corral.model.settings import Settings
from corral.server.authorization import SLICE, Authorizer, RequiredOperation
from corral.store import Store

ACCOUNT = "123456789012"
ANN = Caller(ACCOUNT, "us-east-1", iam_user(ACCOUNT, "ann"))
LAST = f"i-{1000:017x}"


class Reads:
    """The state lane, as far as the check of permissions uses it."""

    def __init__(self, tx: Tx[Store]) -> None:
        self._tx = tx

    def read_without_snapshot(self, handler: Callable[[Tx[Store]], Any], *_: Any) -> Any:
        return handler(self._tx)


class Termination:
    """A request that terminates 1,000 instances."""

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("ec2", "TerminateInstances", {"InstanceIds": [f"i-{number:017x}" for number in range(1, 1001)]})

    def denied(self, message: str) -> ApiError:
        return api_error("UnauthorizedOperation", 403)(message)


@pytest.mark.parametrize("denied", ["", f"arn:aws:ec2:*:*:instance/{LAST}"])
def test_others_go_on_between_two_slices(denied: str) -> None:
    tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    statements = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]
    statements += [{"Effect": "Deny", "Action": "*", "Resource": denied}] if denied else []
    inline = {"p": json.dumps({"Version": "2012-10-17", "Statement": statements})}
    user = {"UserId": "AIDA", "Arn": f"arn:aws:iam::{ACCOUNT}:user/ann", "Path": "/", "_inline": inline}
    tx.store.stored.put("iam", "user", "", "ann", user, tx.now_s, "root")
    authorizer = Authorizer(Reads(tx), Settings(), SeededIds(Random(1)))  # type: ignore[arg-type]
    turns = 0

    async def check() -> None:
        nonlocal turns
        checking = asyncio.ensure_future(authorizer.check(ANN, Termination()))
        while not checking.done():
            turns += 1
            await asyncio.sleep(0)
        await checking

    if denied:
        with pytest.raises(ApiError, match=f"{LAST} with an explicit deny"):
            asyncio.run(check())
    else:
        asyncio.run(check())
    assert turns >= 1000 // SLICE
