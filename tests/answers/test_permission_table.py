"""Every operation that is served has a row in the table of permissions, and each kind of caller gets what the row says."""

from __future__ import annotations

import json
from random import Random

import pytest

from answers.permission_table import CALLER, FILE, HEAD, table
from corral.access.authorization import refusal
from corral.access.caller import Caller
from corral.access.principals import policies_of_caller
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import FEDERATED_USER, Principal, role_session
from corral.model.session import SessionTerms
from corral.model.settings import Settings
from corral.operations.services import SERVICES, needed_permissions
from corral.server.authentication import ANONYMOUS
from corral.store import Store
from wire.generate import Generator
from wire.oracle import model_of

ACCOUNT = "123456789012"
ALL = json.dumps({"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}})
ROLE, LIMITED = role_session(ACCOUNT, "train", "t", "user/ann"), role_session(ACCOUNT, "none", "s", "root")
KINDS = {
    "user": CALLER,
    "session of a role": Caller(ACCOUNT, "us-east-1", ROLE),
    "task": Caller(ACCOUNT, "us-east-1", ROLE, confined=True, task_id="t"),
    "federated user": Caller(
        ACCOUNT, "us-east-1", Principal(ACCOUNT, FEDERATED_USER, "guest", "token", "user/ann"), terms=SessionTerms(policies=(ALL,))
    ),
    "limited session": Caller(
        ACCOUNT, "us-east-1", role_session(ACCOUNT, "none", "s", "root"), terms=SessionTerms(is_restricted=True)
    ),
    "anonymous": Caller(ACCOUNT, "us-east-1", ANONYMOUS.principal),
}


def test_the_table_has_every_operation_that_is_served() -> None:
    found = table()
    rows = [line.partition(" ")[0] for line in found.removeprefix(HEAD).splitlines()]
    assert rows == [f"{service}:{each}" for service in SERVICES for each in sorted(SERVICES[service].operations)]
    assert FILE.read_text() == found, "run `cd tests && python -m answers.permission_table`, and read what has changed"


def store(allowed: str) -> Tx[Store]:
    """A store with a user and a role that may do everything, or nothing."""
    tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    inline = {"all": ALL} if allowed == "everything" else {}
    for kind, name in (("user", "ann"), ("role", "train"), ("role", "none")):
        title = kind.capitalize()
        document = {f"{title}Id": f"A{kind}", "Arn": f"arn:aws:iam::{ACCOUNT}:{kind}/{name}", "Path": "/", "_inline": inline}
        trust = {"_attached": [], "AssumeRolePolicyDocument": ALL}
        tx.store.stored.put("iam", kind, "", name, document | trust, tx.now_s, "root")
    return tx


@pytest.mark.parametrize("service", SERVICES)
def test_each_kind_of_caller_needs_policies(service: str) -> None:
    nothing, everything = store("nothing"), store("everything")
    model = model_of(service)
    for operation in SERVICES[service].operations:
        if operation not in model.operation_names or operation == "DeleteObjects":
            continue  # a form, and an operation whose handler checks the permission for each key
        shape = model.operation_model(operation).input_shape
        params = Generator(f"permissions {operation} 0").value(shape) if shape is not None else {}
        for kind, caller in KINDS.items():
            try:
                needed = needed_permissions(nothing, caller, service, operation, params)
            except ApiError:
                continue
            without = refusal(nothing, caller, policies_of_caller(nothing, caller), needed, is_open=False)
            assert without is not None and "is not authorized to perform: " in without, (operation, kind)
            allowed = refusal(everything, caller, policies_of_caller(everything, caller), needed, is_open=False)
            is_trust = operation == "AssumeRole"  # no role of the generated request trusts the caller
            assert (allowed is None) == (kind != "anonymous" and not is_trust), (operation, kind, allowed)
