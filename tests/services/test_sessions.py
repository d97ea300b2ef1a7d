"""Temporary credentials and their signed tokens, on a virtual clock, without a server."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from hypothesis import given
from hypothesis import strategies as st

from corral.access import sessions
from corral.aws import Secret
from corral.core.clock import VirtualClock
from corral.model.principal import role_session, root_user
from corral.model.run import RunState
from corral.model.settings import Settings
from corral.model.task import Demand, Run, Task, TaskState
from corral.server.authentication import Authentication
from corral.services.ecs.run_spec import task_environment

KEY, OTHER = b"k" * 32, b"o" * 32
ACCOUNT = "123456789012"
TASK = "0123456789abcdef0123456789abcdef"
PRINCIPAL = role_session(ACCOUNT, "worker", TASK, "user/alice")
REFRESH_S = 15 * 60  # botocore requests new credentials this long before the old ones expire
NOW_S = 1_700_000_000.0


def test_a_session_is_read_back() -> None:
    made = sessions.issue(KEY, b"nonce!", PRINCIPAL, 1_700_003_600, TASK)
    assert made.session.access_key_id.startswith("ASIA") and len(made.session.access_key_id) == 20
    assert len(made.secret_key) == 40
    assert sessions.read(KEY, made.session.access_key_id, made.token) == made
    assert made.secret_key not in repr(made) and made.token not in repr(made)


def test_the_token_does_not_hold_the_secret() -> None:
    made = sessions.issue(KEY, b"nonce!", PRINCIPAL, 1_700_003_600, TASK)
    assert made.secret_key.encode() not in urlsafe_b64decode(made.token)


@given(st.data())
def test_a_changed_token_is_not_accepted(data: st.DataObject) -> None:
    made = sessions.issue(KEY, b"nonce!", PRINCIPAL, 1_700_003_600, TASK)
    sealed = bytearray(urlsafe_b64decode(made.token))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    assert sessions.read(KEY, made.session.access_key_id, urlsafe_b64encode(bytes(sealed)).decode()) is None


@given(st.one_of(st.text(max_size=80), st.binary(max_size=80).map(lambda junk: urlsafe_b64encode(junk).decode())))
def test_random_text_is_not_a_token(token: str) -> None:
    assert sessions.read(KEY, "ASIAAAAAAAAAAAAAAAAA", token) is None


def test_a_token_is_valid_for_one_data_folder_and_one_access_key() -> None:
    one = sessions.issue(KEY, b"nonce1", PRINCIPAL, 1_700_003_600, None)
    two = sessions.issue(KEY, b"nonce2", PRINCIPAL, 1_700_003_600, None)
    assert sessions.read(OTHER, one.session.access_key_id, one.token) is None
    assert sessions.read(KEY, two.session.access_key_id, one.token) is None
    assert sessions.read(KEY, one.session.access_key_id, one.token + "A" * sessions.TOKEN_MAX) is None
    assert sessions.is_our_key(KEY, one.session.access_key_id) and not sessions.is_our_key(OTHER, one.session.access_key_id)
    assert not any(
        sessions.is_our_key(KEY, text) for text in ("", "ASIA", "AKIAAAAAAAAAAAAAAAAA", "ASIA" + "1" * 16, "ASIA" + "A" * 16)
    )


@given(st.floats(NOW_S, NOW_S + 10 * sessions.TASK_LIFETIME_S))
def test_a_task_always_gets_credentials_that_last(now_s: float) -> None:
    """At any time: new credentials last long enough, and the earlier ones are valid until the SDK refreshes them."""
    given = sessions.of_task(KEY, ACCOUNT, "worker", TASK, "user/alice", now_s)
    assert given.session.principal == PRINCIPAL and given.session.task_id == TASK
    left_s = given.session.expires_at_s - now_s
    assert REFRESH_S < left_s <= sessions.TASK_LIFETIME_S
    soon = sessions.of_task(KEY, ACCOUNT, "worker", TASK, "user/alice", now_s + 1)
    assert soon == given or soon.session.expires_at_s == given.session.expires_at_s + sessions.TASK_ROTATION_S
    asked_again = sessions.of_task(KEY, ACCOUNT, "worker", TASK, "user/alice", given.session.expires_at_s - REFRESH_S)
    assert asked_again.session.expires_at_s > given.session.expires_at_s
    assert asked_again.session.access_key_id != given.session.access_key_id


def test_a_session_ends_with_its_task_and_others_do_not() -> None:
    live = {TASK}
    authentication = Authentication("AKIAROOT", Secret("s", None, None, root_user(ACCOUNT)), KEY, live, VirtualClock(NOW_S))
    of_task = sessions.of_task(KEY, ACCOUNT, "worker", TASK, "user/alice", NOW_S)
    of_person = sessions.issue(KEY, b"nonce!", PRINCIPAL, 1_700_003_600, None)

    def expiry(made: object) -> float | None:
        found = authentication.secret(made.session.access_key_id, made.token)  # type: ignore[attr-defined]
        assert found is not None and found.principal == PRINCIPAL
        return found.expires_at_s

    assert expiry(of_task) == of_task.session.expires_at_s
    live.clear()
    assert expiry(of_task) == 0.0
    assert expiry(of_person) == 1_700_003_600
    assert authentication.secret(of_task.session.access_key_id, None) is None
    assert authentication.secret("AKIANOBODY", of_task.token) is None


def test_passwords_and_addresses_differ_by_task_run_and_data_folder() -> None:
    passwords = {sessions.password_of_task(key, task_id) for key in (KEY, OTHER) for task_id in ("a", "b")}
    addresses = {sessions.address_of_run(key, run_id) for key in (KEY, OTHER) for run_id in ("a", "b")}
    assert len(passwords) == 4 and len(addresses) == 4


def test_the_credentials_of_a_task() -> None:
    run = Run("r" * 32, TASK, "main", 0, True, 0, RunState.PENDING)
    task = Task(
        TASK, "eu-west-1", "default", "x:1", "hosts:default", TaskState.PENDING, TaskState.RUNNING, Demand(), NOW_S, runs=(run,)
    )
    told = task_environment(Settings(), task, run)
    assert told["AWS_EXECUTION_ENV"] == "AWS_ECS_EC2" and told["AWS_REGION"] == told["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert told["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == f"http://127.0.0.1:4566/v2/credentials/{TASK}"
    fargate = task_environment(Settings(), task.but(launch_type="FARGATE"), run)
    assert fargate["AWS_EXECUTION_ENV"] == "AWS_ECS_FARGATE"
