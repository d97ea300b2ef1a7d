"""Access to the host: which settings of a task definition give it, and which operations ask for `corral:RunOnHost`."""

from __future__ import annotations

from random import Random

import orjson

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import ROOT, role_session, root_user
from corral.model.settings import Settings
from corral.store import Store
from corral.template_types.api_calls import call

ACCOUNT, REGION = "123456789012", "us-east-1"
USER = Caller(ACCOUNT, REGION, root_user(ACCOUNT))
TASK = Caller(ACCOUNT, REGION, role_session(ACCOUNT, "train", "me", ROOT), confined=True)
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}


def new_tx() -> Tx[Store]:
    return Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())


def allow(tx: Tx[Store], *actions: str) -> None:
    """Give the role of TASK a policy that allows actions."""
    trust = orjson.dumps(TRUST).decode()
    call(tx, USER, "iam", "CreateRole", {"RoleName": "train", "AssumeRolePolicyDocument": trust})
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    document = orjson.dumps(policy).decode()
    call(tx, USER, "iam", "PutRolePolicy", {"RoleName": "train", "PolicyName": "p", "PolicyDocument": document})


def test_who_may_run_on_the_host() -> None:
    tx = new_tx()
    assert may_run_on_host(tx, USER) and not may_run_on_host(tx, TASK)
    allow(tx, "ecs:*", "corral:RunOnHost")
    assert may_run_on_host(tx, TASK)
    other = new_tx()
    allow(other, "ecs:*", "iam:PassRole")
    assert not may_run_on_host(other, TASK)
