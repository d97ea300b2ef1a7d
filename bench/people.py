"""`bench/people.py [--requests N] [--seed S]`: users on other machines try to reach what belongs to others.

alice and bob have a machine each: a network namespace, and a home folder in which `corral connect` has stored a key and the
authority of the server. Over TLS, bob tries some 400 times to see, change, stop and use what alice owns, and the same again with
what root owns (`tests/people/`). Each attempt must be refused, with a reason that names the action and the resource, and must
change nothing. The same calls must work for the owner. Then N fuzzed requests of dave, who has no permissions, must all be refused.

The script prints a table and counts, and exits with 1 if something is not as expected. It needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from command import Cli
from harness import Corral
from hosts.lab import Lab, Machine, why_not
from people.attempts import WORKS, Actor, Attempt, Names, Outcome, controls, results
from people.contents import changes, settled
from people.refusals import Stranger
from people.setting import ATTEMPTS, OWN_STACKS, add_user, prepare
from people.world import build, names_for, trust_with

PLACES = {each: at for at, each in enumerate(ATTEMPTS)}
SHOWN = 1_000  # characters of a failure
ROUND = 20_000  # fuzzed requests between two lines
# What bob types, and what the command says. {0} is a task of alice.
COMMANDS = (
    ("stop {0}", "not authorized to perform: ecs:DescribeTasks"),
    ("logs {0}", "not authorized to perform"),
    ("exec {0} -- id", "not authorized to perform: ecs:DescribeTasks"),
    ("user add eve", "not authorized to perform: iam:GetGroup"),
    ("user list", "not authorized to perform: iam:ListUsers"),
    ("user remove alice", "not authorized to perform"),
    ("token create", "not authorized to perform: corral:CreateJoinToken"),
    ("revoke --all", "not authorized to perform: corral:RevokeSessions"),
    ("backup copy", "is not a data folder of Corral"),  # the folder of the server is not on this machine
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--requests", type=int, default=100_000, help="fuzzed requests of a user without permissions")
    options.add_argument("--seed", default="1")
    options.add_argument("--act", choices=("build", "attempt", "control"), help="for the processes on the machines of the lab")
    options.add_argument("--home", type=Path)
    options.add_argument("--name")
    given = options.parse_args()
    if given.act:
        return _act(given.act, actor_at(given.home, given.name))
    if reason := why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-people-") as name, Lab(Path(name) / "lab") as lab:
        server = Cli(Path(name))
        try:
            wrong = _attempts(server, lab, Path(name))
            wrong += _fuzz(server, given.requests, given.seed) if given.requests else 0
        finally:
            server.clear()
    print("all as expected" if not wrong else f"{wrong} are not as expected")
    return 1 if wrong else 0


# --- on the machine of a user ---------------------------------------------------------------------------------------------


def actor_at(home: Path, name: str) -> Actor:
    """Return the person whose key `corral connect` has stored in a home folder."""
    lines = [line for file in ("config", "credentials") for line in (home / ".aws" / file).read_text().splitlines()]
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return Actor(name, values["endpoint_url"], values["aws_access_key_id"], values["aws_secret_access_key"], values["ca_bundle"])


def _act(what: str, actor: Actor) -> int:
    """Do what standard input says, and print the result as JSON."""
    names: Names = json.load(sys.stdin)
    if what == "build":
        print(json.dumps(build(actor)))
        return 0
    done = results(ATTEMPTS, actor, names) if what == "attempt" else controls(ATTEMPTS, actor, names)
    print(json.dumps([(PLACES[each], outcome.kind, outcome.text) for each, outcome in done]))
    return 0


class Laptop:
    """The machine of a user."""

    def __init__(self, server: Cli, machine: Machine, folder: Path) -> None:
        self.machine, self.name, self.home = machine, machine.name, folder / f"home-{machine.name}"
        self.home.mkdir()
        foreign = ("AWS_", "CORRAL_")
        kept = {name: value for name, value in server.environment.items() if not name.startswith(foreign)}
        self.environment = {**kept, "HOME": str(self.home)}
        line = shlex.split(server("user", "add", self.name).stdout)
        done = self.corral(*line[1:])
        assert done.returncode == 0, done.stderr

    def corral(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.machine.command("corral", *words), env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=60
        )

    @property
    def actor(self) -> Actor:
        return actor_at(self.home, self.name)

    def act(self, what: str, names: Names) -> Any:
        words = (sys.executable, __file__, "--act", what, "--home", str(self.home), "--name", self.name)
        done = subprocess.run(
            self.machine.command(*words), env=self.environment, input=json.dumps(names), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def outcomes(self, what: str, names: Names) -> list[tuple[Attempt, Outcome]]:
        return [(ATTEMPTS[at], Outcome(kind, text)) for at, kind, text in self.act(what, names)]


# --- on the server --------------------------------------------------------------------------------------------------------


def root_of(server: Cli) -> Actor:
    about, keys = (json.loads((server.data / name).read_text()) for name in ("server.json", "credentials.json"))
    return Actor("root", about["url"], keys["access_key"], keys["secret_key"])


def _attempts(server: Cli, lab: Lab, folder: Path) -> int:
    server("up", "--detach", "--port", "0", "--gpus", "sim:2", "--runtime", "process", "--tls", "--tls-names", lab.address)
    root = root_of(server)
    alice, bob = (Laptop(server, lab.add(name), folder) for name in ("alice", "bob"))
    prepare(root)
    for name in ("alice", "bob"):
        trust_with(root, name)
    worlds = {"root": build(root), "alice": alice.act("build", {}), "bob": bob.act("build", {})}
    more = {"alice_key": alice.actor.access_key}
    before, wrong, counts = settled(server.data), 0, Counter[str]()
    for owner in ("alice", "root"):
        names = names_for("bob", owner, worlds) | more
        wrong += _print_attempts(owner, bob.outcomes("attempt", names), names, counts)
    wrong += _commands(bob, worlds["alice"]["task"])
    changed = [each for each in changes(before, settled(server.data)) if not each.startswith(OWN_STACKS)]
    print("\n".join(["", "What the attempts changed:", *(changed or ["nothing"])]))
    own = names_for("alice", "alice", worlds) | more
    wrong += _print_controls("alice", alice.outcomes("control", own), counts)
    own = names_for("root", "root", worlds) | more
    wrong += _print_controls("root", controls(ATTEMPTS, root, own), counts)
    print("\n" + "\n".join(f"{count:6} {name}" for name, count in counts.most_common()), flush=True)
    return wrong + len(changed)


def _print_attempts(owner: str, done: Iterable[tuple[Attempt, Outcome]], names: Names, counts: Counter[str]) -> int:
    print(f"\nWhat bob tries with what is {owner}'s, how it ends, and the permission that the error names:")
    wrong = 0
    for each, outcome in done:
        why = each.why_wrong(outcome, names)
        print(f"{each.name[:45]:45} {outcome.kind[:9]:9} {each.action[:24]}{f' WRONG: {why}' if why else ''}")
        counts[f"attempts of bob {outcome.kind}"] += 1
        wrong += bool(why)
    return wrong


def _print_controls(owner: str, done: Iterable[tuple[Attempt, Outcome]], counts: Counter[str]) -> int:
    wrong = 0
    for each, outcome in done:
        counts[f"calls of the owner: {outcome.kind}"] += 1
        if outcome.kind != WORKS:
            print(f"WRONG: {owner} cannot {each.name}: {outcome.kind} {outcome.text[:300]}")
            wrong += 1
    return wrong


def _commands(bob: Laptop, task: str) -> int:
    print("\nWhat bob types:")
    wrong = 0
    for line, text in COMMANDS:
        done = bob.corral(*shlex.split(line.format(task)))
        is_right = done.returncode != 0 and text in done.stderr + done.stdout
        typed, why = line.format(task)[:38], "" if is_right else f" WRONG: {done.stderr}{done.stdout}"
        print(f"corral {typed:38} exit code {done.returncode}{why}")
        wrong += not is_right
    return wrong


class _Fuzzed(Corral):
    """The running server, in the form that the builder of the fuzzed state takes."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(data)
        self.port = url.rpartition(":")[2]


def _fuzz(server: Cli, count: int, seed: str) -> int:
    root = root_of(server)
    fuzzed = _Fuzzed(server.data, root.url)
    stranger = Stranger(fuzzed, add_user(root, "dave"), seed)
    asyncio.run(stranger.build())
    fuzzed.stop_tasks()
    before, began, found = settled(server.data), time.monotonic(), stranger.found
    for done in range(0, count, ROUND):
        asyncio.run(stranger.run(min(ROUND, count - done), f"{seed} {done}"))
        print(f"{found.sent} requests of a user without permissions: {found.denied} denied", flush=True)
        if found.failures:
            break
    changed = changes(before, settled(server.data))
    print(f"{time.monotonic() - began:.0f} s; how they ended:")
    print("\n".join(f"{number:7} {code}" for code, number in found.codes.most_common(20)))
    print("\n".join(["What they changed:", *(changed or ["nothing"]), *[failure[:SHOWN] for failure in found.failures]]))
    return len(changed) + len(found.failures)


if __name__ == "__main__":
    sys.exit(main())
