"""Authentication and authorisation with a virtual clock and without a server."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.access import sessions
from corral.access.caller import Caller
from corral.aws import Secret
from corral.core.clock import VirtualClock
from corral.core.errors import ApiError
from corral.model.access_key import ACTIVE, INACTIVE, AccessKey
from corral.model.principal import role_session, root_user
from corral.model.session import SessionValidity
from corral.operations.encryption import encrypt
from corral.server.authentication import ANONYMOUS, TASKS, Authentication
from corral.server.front_door import PUBLIC_ACTIONS, AccessDenied, authorise
from corral.services.ecr.registry_passwords import RegistryAccess, password
from corral.store.iam_index import IamIndex

KEY, OTHER = b"k" * 32, b"o" * 32
TASK, RUN = "0123456789abcdef0123456789abcdef", "f" * 32
ROOT = root_user("123456789012")
OF_ROLE = role_session("123456789012", "worker", "x", "root")
NOW_S = 1_700_000_000.0


class FakeExchange:
    """An exchange with the members that authorisation uses."""

    def __init__(self, action: str) -> None:
        self.action = action

    authenticate: Any = None
    required: Any = None
    denied: Any = None
    run: Any = None
    refuse: Any = None


def authentication(clock: VirtualClock, live: set[str]) -> Authentication:
    return Authentication("AKIAROOT", Secret("secret", None, None, ROOT), KEY, live, clock)


def test_registry_passwords_carry_principal_and_region_until_they_expire():
    clock, live = VirtualClock(NOW_S), {TASK}
    door = authentication(clock, live)
    of_root = password(KEY, RegistryAccess(ROOT, "eu-west-1", int(NOW_S) + 60, None))
    of_task = password(KEY, RegistryAccess(OF_ROLE, "us-east-1", int(NOW_S) + 3600, TASK))
    found = door.registry_password(of_root)
    assert found is not None and (found.principal, found.region, found.task_id) == (ROOT, "eu-west-1", None)
    found = door.registry_password(of_task)
    assert found is not None and found.task_id == TASK
    for wrong in ("", "x", of_root[:-4], password(OTHER, RegistryAccess(ROOT, "eu-west-1", int(NOW_S) + 60, None))):
        assert door.registry_password(wrong) is None
    clock.advance(60)
    with pytest.raises(ApiError, match="expired"):
        door.registry_password(of_root)
    live.clear()  # the task ends, so its password expires
    with pytest.raises(ApiError, match="expired"):
        door.registry_password(of_task)


def test_a_task_proves_itself_by_its_token_and_a_container_by_its_address():
    door = authentication(VirtualClock(NOW_S), {TASK})
    token, address = sessions.password_of_task(KEY, TASK), sessions.address_of_run(KEY, RUN)
    found = door.task_token(TASK, token)
    assert found is not None and (found.principal, found.task_id) == (TASKS, TASK)
    assert door.task_token("0" * 32, token) is None and door.task_token(TASK, "é") is None
    found = door.container_address(RUN, address)
    assert found is not None and found.principal == TASKS
    assert door.container_address("0" * 32, address) is None
    assert door.container_address(RUN, sessions.address_of_run(OTHER, RUN)) is None


@pytest.mark.parametrize("principal", [ROOT, OF_ROLE, TASKS])
def test_callers_outside_of_containers_may_perform_every_action(principal):
    caller = Caller("123456789012", "us-east-1", principal)
    for action in ("ecs:RunTask", "s3:PutObject", "registry:PUT", *PUBLIC_ACTIONS):
        authorise(caller, FakeExchange(action))


def test_anonymous_callers_may_perform_public_actions_only():
    caller = Caller("123456789012", "", ANONYMOUS.principal)
    for action in PUBLIC_ACTIONS:
        authorise(caller, FakeExchange(action))
    for action in ("ecs:ListTasks", "s3:GetObject", "corral:Status", "registry:GET"):
        with pytest.raises(AccessDenied, match=action):
            authorise(caller, FakeExchange(action))


def test_the_key_of_a_user_identifies_the_user_until_it_is_inactive():
    iam, validity = IamIndex(), SessionValidity()
    validity.has_user = iam.has_user
    door = Authentication("AKIAROOT", Secret("secret", None, None, ROOT), KEY, set(), VirtualClock(NOW_S), validity, iam, KEY)
    assert door.secret("AKIAUSER", None) is None
    iam.changed("user", "ann", {"UserId": "AIDAANN", "Path": "/lab/"})
    key = AccessKey("AKIAUSER", "ann", encrypt(KEY, "of ann", "AKIAUSER"), ACTIVE, 1.0)
    iam.changed_key(key.id, key)
    found = door.secret("AKIAUSER", None)
    assert found is not None and found.secret_key == "of ann" and not found.principal.is_root
    assert (found.principal.arn, found.principal.owner) == ("arn:aws:iam::123456789012:user/lab/ann", "user/ann")
    assert door.secret("AKIAUSER", "token") is None
    of_user = password(KEY, RegistryAccess(found.principal, "", int(NOW_S) + 60, None, False, validity.of_user("AIDAANN", key.id)))
    of_session = password(KEY, RegistryAccess(found.principal, "", int(NOW_S) + 60, None, False, validity.of_user("AIDAANN")))
    assert [door.registry_password(each) is not None for each in (of_user, of_session)] == [True, True]
    iam.changed_key(key.id, replace(key, status=INACTIVE))
    assert door.secret("AKIAUSER", None) is None
    with pytest.raises(ApiError, match="expired"):
        door.registry_password(of_user)
    assert door.registry_password(of_session) is not None
    iam.changed("user", "ann", None)  # another user of the same name is not this one
    iam.changed("user", "ann", {"UserId": "AIDAANN2", "Path": "/"})
    with pytest.raises(ApiError, match="expired"):
        door.registry_password(of_session)
    iam.changed_key(key.id, replace(key, secret=encrypt(OTHER, "of ann", "AKIAUSER")))
    assert door.secret("AKIAUSER", None) is None
