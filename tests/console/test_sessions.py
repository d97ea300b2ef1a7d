"""Links and sessions of the console, with a virtual clock."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from corral.core.clock import VirtualClock
from corral.model.access_key import ACTIVE, AccessKey
from corral.model.session import ConsoleIdentity, SessionValidity
from corral.server.console.sessions import (
    LINK_S,
    OF_IDENTITY_MAX,
    SESSION_S,
    ConsoleSessions,
    NewSession,
    SessionEnded,
)
from corral.store.iam_index import IamIndex

ACCOUNT = "123456789012"


class World:
    """Sessions of the root user and of the user ann, which a new server can read again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "console.json"
        self.clock, self.iam = VirtualClock(), IamIndex()
        self.validity = SessionValidity(root_mark="mark", has_user=self.iam.has_user)
        self.iam.changed("user", "ann", {"UserId": "AIDAANN", "Path": "/lab/"})
        self.set_key(ACTIVE)
        self.sessions = self.server()

    def set_key(self, status: str) -> None:
        self.iam.changed_key("AKIAANN", AccessKey("AKIAANN", "ann", "sealed", status, 0))

    def server(self) -> ConsoleSessions:
        return ConsoleSessions(self.path, ACCOUNT, self.validity, self.iam, self.clock)

    @property
    def root(self) -> ConsoleIdentity:
        return ConsoleIdentity("root", "AKIAROOT", self.validity.of_root, "eu-west-1")

    @property
    def ann(self) -> ConsoleIdentity:
        return ConsoleIdentity("user/ann", "AKIAANN", self.validity.of_user("AIDAANN", "AKIAANN"), "us-east-1")

    def begin(self, identity: ConsoleIdentity) -> NewSession:
        return self.sessions.redeem(self.sessions.create_link(identity)[0])

    def arn(self, made: NewSession) -> str:
        """The ARN of the identity of a session. Empty: it has ended."""
        try:
            return self.sessions.find(made.cookie, made.secret)[1].principal.arn
        except SessionEnded:
            return ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_link_works_once_and_for_five_minutes(world: World) -> None:
    code, expires_at_s = world.sessions.create_link(world.root)
    assert expires_at_s == world.clock.wall_s() + LINK_S == world.clock.wall_s() + 300
    assert world.arn(world.sessions.redeem(code)) == f"arn:aws:iam::{ACCOUNT}:root"
    late, _ = world.sessions.create_link(world.root)
    world.clock.advance(LINK_S)
    for used in (code, late, late, "", "none"):
        with pytest.raises(SessionEnded):
            world.sessions.redeem(used)


def test_a_session_needs_both_secrets_and_ends_with_its_time(world: World) -> None:
    mine, other = world.begin(world.root), world.begin(world.root)
    for cookie, secret in ((mine.cookie, other.secret), (mine.cookie, ""), ("", mine.secret), (mine.secret, mine.cookie)):
        with pytest.raises(SessionEnded):
            world.sessions.find(cookie, secret)
    assert world.sessions.find(mine.cookie, mine.secret)[1].region == "eu-west-1"
    world.clock.advance(SESSION_S - 1)
    assert world.arn(mine) and world.sessions.is_open(mine.cookie, mine.session)
    world.clock.advance(1)
    assert not world.arn(mine) and not world.sessions.is_open(mine.cookie, mine.session)
    with pytest.raises(SessionEnded):
        world.sessions.identity_with_cookie(mine.cookie)


def test_sessions_survive_a_restart_and_only_digests_are_stored(world: World) -> None:
    made = world.begin(world.ann)
    link, _ = world.sessions.create_link(world.ann)
    stored = world.path.read_text()
    assert made.cookie not in stored and made.secret not in stored and link not in stored
    assert os.stat(world.path).st_mode & 0o777 == 0o600
    world.sessions = world.server()
    assert world.arn(made) == f"arn:aws:iam::{ACCOUNT}:user/lab/ann"
    with pytest.raises(SessionEnded):  # links are in memory
        world.sessions.redeem(link)
    world.sessions.end(made.cookie)
    world.sessions = world.server()
    assert not world.arn(made)


@pytest.mark.parametrize("content", ["", "[]", '{"sessions": {"a": 1}}', "\xff"])
def test_a_damaged_file_has_no_sessions(world: World, content: str) -> None:
    made = world.begin(world.root)
    world.path.write_text(content)
    world.sessions = world.server()
    assert not world.arn(made) and world.arn(world.begin(world.root))


def test_sessions_end_with_their_user_their_key_and_all_others(world: World) -> None:
    root, ann = world.begin(world.root), world.begin(world.ann)
    link, _ = world.sessions.create_link(world.ann)
    world.set_key("Inactive")
    assert world.arn(root) and not world.arn(ann)
    with pytest.raises(SessionEnded):
        world.sessions.redeem(link)
    world.set_key(ACTIVE)
    assert world.arn(ann)
    world.iam.changed_key("AKIAANN", None)
    assert not world.arn(ann)
    world.set_key(ACTIVE)
    world.iam.changed("user", "ann", None)
    world.iam.changed("user", "ann", {"UserId": "AIDAOTHER", "Path": "/"})  # another user of the same name
    assert not world.arn(ann)
    world.validity.root_mark = "another root key"
    assert not world.arn(root)
    again = world.begin(world.root)
    world.validity.generation += 1  # corral revoke --all
    assert not world.arn(again)


def test_an_identity_ends_its_own_sessions_and_links_only(world: World) -> None:
    root, first, second = world.begin(world.root), world.begin(world.ann), world.begin(world.ann)
    links = [world.sessions.create_link(each)[0] for each in (world.ann, world.root)]
    assert world.sessions.end_of_owner("user/ann") == 2
    assert (world.arn(root) != "", world.arn(first), world.arn(second)) == (True, "", "")
    with pytest.raises(SessionEnded):
        world.sessions.redeem(links[0])
    assert world.arn(world.sessions.redeem(links[1]))
    assert world.sessions.end_of_owner("user/ann") == 0


def test_the_links_of_an_identity_end_only_its_own(world: World) -> None:
    of_root = world.sessions.create_link(world.root)[0]
    codes = [world.sessions.create_link(world.ann)[0] for _ in range(2_000)]
    assert world.arn(world.sessions.redeem(of_root)), "the link of root"
    with pytest.raises(SessionEnded):
        world.sessions.redeem(codes[-OF_IDENTITY_MAX - 1])
    assert world.arn(world.sessions.redeem(codes[-OF_IDENTITY_MAX]))


def test_the_number_of_sessions_of_an_identity_is_bounded(world: World) -> None:
    root = world.begin(world.root)
    made = [world.begin(world.ann) for _ in range(OF_IDENTITY_MAX + 2)]
    assert [world.arn(each) != "" for each in made] == [False] * 2 + [True] * OF_IDENTITY_MAX
    assert world.arn(root) and len(json.loads(world.path.read_text())["sessions"]) == OF_IDENTITY_MAX + 1
