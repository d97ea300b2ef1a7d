"""Fuzzed requests of a user without permissions, on a state that the root user has built: all are refused, and change nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from fuzz.composer import Composer, Knowledge, NotSerializable, Params, serialized, served_operations
from fuzz.deep_state import DeepState
from fuzz.mutator import Mutator
from harness import Corral
from people.attempts import DENIED, Actor
from raw_aws import Answer, Connection, RawRequest, complaint, shown

IN_FLIGHT = 4
TARGET_MAX = 50_000  # characters of a URL; the HTTP parser refuses longer ones before anything is recognised
FAILURES_MAX = 5
TYPED = ("query", "ec2", "rest-xml")  # protocols whose requests cannot be serialized from values of the wrong types
# Who am I, sessions with the caller's own permissions, and DeleteObjects, whose response has an error for each key.
ALLOWED = frozenset(
    {"sts:GetCallerIdentity", "sts:GetSessionToken", "s3:DeleteObjects", "corral:CreateConsoleLink", "corral:EndConsoleSessions"}
)


@dataclass
class Refusals:
    """How many requests ended with which code, and what is wrong."""

    codes: Counter[str] = field(default_factory=Counter)
    denied: int = 0
    sent: int = 0
    failures: list[str] = field(default_factory=list)


class Stranger:
    """Sends requests of one user, who has no permissions."""

    def __init__(self, corral: Corral, user: Actor, mark: str) -> None:
        self.found = Refusals()
        self._user = user
        self._mark = mark
        self._knowledge = Knowledge(Random(mark))
        self._state = DeepState(corral, self._knowledge, mark)
        self._operations = served_operations()

    async def build(self) -> None:
        await self._state.build()

    async def run(self, count: int, seed: str) -> None:
        await asyncio.gather(*(self._worker(range(at, count, IN_FLIGHT), Random(f"{seed} {at}")) for at in range(IN_FLIGHT)))

    async def _worker(self, numbers: range, rng: Random) -> None:
        composer, mutator = Composer(rng, self._knowledge, self._state.examples), Mutator(rng)
        connection = Connection(self._user)  # type: ignore[arg-type]
        for number in numbers:
            service, protocol, operation = self._operations[number % len(self._operations)]
            try:
                request = _request(composer, mutator, rng, service, protocol, operation)
            except NotSerializable:
                continue
            if len(self.found.failures) >= FAILURES_MAX:
                break
            await self._send(connection, request, f"{service}:{operation}")
        await connection.close()

    async def _send(self, connection: Connection, request: RawRequest, name: str) -> None:
        self.found.sent += 1
        try:
            answer = await connection(request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, AssertionError) as error:
            self.found.failures.append(f"{name}: no response: {error!r}\n{shown(request)}")
            await connection.close()
            return
        wrong = complaint(request, answer) or _allowed(answer, name)
        if wrong is not None:
            self.found.failures.append(f"{name}: {wrong}: {answer.body[:500]!r}\n{shown(request)}")
        code = answer.code or str(answer.status)
        self.found.codes[code] += 1
        self.found.denied += code in DENIED


def _allowed(answer: Answer, name: str) -> str | None:
    if answer.status < 400 and name not in ALLOWED:
        return f"it is allowed: {answer.status}"
    return "the body has what was deleted" if b"<Deleted>" in answer.body else None


def _request(composer: Composer, mutator: Mutator, rng: Random, service: str, protocol: str, operation: str) -> RawRequest:
    """Compose a request. Half of them are valid, so that nothing but the missing permission refuses them."""
    params = composer.params(service, protocol, operation)
    chance = rng.random()
    if chance < 0.3:
        params = mutator.params(params, typed=protocol in TYPED)
    request = serialized(service, protocol, operation, _without_waits(params))
    if len(request.path) + len(request.query) > TARGET_MAX:
        raise NotSerializable(operation)
    return mutator.request(request) if 0.3 <= chance < 0.5 else request


def _without_waits(params: Params) -> Params:
    """A long poll would only take time."""
    return {**params, "WaitTimeSeconds": 0} if isinstance(params, dict) and "WaitTimeSeconds" in params else params
