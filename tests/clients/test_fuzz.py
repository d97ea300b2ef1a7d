"""Mutated requests of every served operation, on a deep state: each is answered with a result or a typed error, never with a 500.

Before them, each 64-bit integer and each timestamp has its smallest and its largest value; in a long run, also each other number.

    CORRAL_FUZZ=100000 .venv/bin/python -m pytest -n 0 -s tests/clients/test_fuzz.py      # a long run
    CORRAL_FUZZ_SEED=7 …                                                                    # other requests

A failure shows the seed and the request. Requests depend on what earlier responses contained, so the request is what to replay.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random

from fuzz.composer import Composer, Knowledge, NotSerializable, Params, serialized, served_operations
from fuzz.deep_state import DeepState
from fuzz.extremes import EXTREMES, LARGE, extreme_params
from fuzz.mutator import Mutator
from fuzz.other_requests import OtherRequests
from harness import Corral
from raw_aws import Answer, Connection, RawRequest, complaint, shown

REQUESTS = int(os.environ.get("CORRAL_FUZZ", "1500"))
SEED = os.environ.get("CORRAL_FUZZ_SEED", "1")
ROUND = 4000  # requests on one state; then a new one is built, because deletions empty the old one
IN_FLIGHT = 8
FAILURES_MAX = 5
TARGET_MAX = 50_000  # characters of a URL; the HTTP parser refuses longer ones before anything is recognised
TYPED = ("query", "ec2", "rest-xml")  # protocols whose requests cannot be serialized from values of the wrong types


def test_no_request_makes_the_server_fail(corral: Corral) -> None:
    print(f"seed {SEED}, {REQUESTS} requests")
    failures: list[str] = []
    codes: Counter[str] = Counter()
    for number in range(0, REQUESTS, ROUND):
        mark = f"{SEED}-{number // ROUND}"
        fuzz = Fuzz(corral, mark, failures, codes)
        extremes = LARGE if REQUESTS <= ROUND else frozenset(EXTREMES) if number == 0 else frozenset[str]()
        asyncio.run(fuzz.run(min(ROUND, REQUESTS - number), extremes))
        print(number, codes.most_common(12), flush=True)
        if failures:
            break
    assert not failures, "\n\n".join([f"seed {SEED}", *failures])
    assert corral.process is not None and corral.process.poll() is None
    assert "Traceback" not in corral.log()
    assert codes["2xx"] > REQUESTS / 20, f"the requests reach too little: {codes}"


class Fuzz:
    def __init__(self, corral: Corral, mark: str, failures: list[str], codes: Counter[str]) -> None:
        self._corral = corral
        self._mark = mark
        self._failures = failures
        self._codes = codes
        self._knowledge = Knowledge(Random(mark))
        self._state = DeepState(corral, self._knowledge, mark)
        self._operations = served_operations()

    async def run(self, count: int, extremes: frozenset[str]) -> None:
        await self._state.build()
        await self.run_extremes(extremes)
        workers = [self._worker(count // IN_FLIGHT, Random(f"{self._mark} {number}")) for number in range(IN_FLIGHT)]
        await asyncio.gather(*workers)

    async def run_extremes(self, kinds: frozenset[str]) -> None:
        """Send each number of these kinds in every operation at its extremes."""
        composer, connection = Composer(Random(self._mark), self._knowledge, self._state.examples), Connection(self._corral)
        for service, protocol, operation in self._operations:
            for changed, params in extreme_params(composer, service, protocol, operation, kinds):
                try:
                    request = serialized(service, protocol, operation, params)
                except NotSerializable:
                    continue
                await self._send(connection, request, f"{service}:{operation} ({protocol}) {changed}")
        await connection.close()

    async def _worker(self, count: int, rng: Random) -> None:
        connection = Connection(self._corral)
        composer, mutator = Composer(rng, self._knowledge, self._state.examples), Mutator(rng)
        state = self._state
        others = OtherRequests(self._corral, rng, mutator, state.repository, state.password, state.bucket)
        for _ in range(count):
            if len(self._failures) >= FAILURES_MAX:
                break
            if rng.random() < 0.05:
                await self._send(connection, others.some(), "another request")
                continue
            service, protocol, operation = rng.choice(self._operations)
            try:
                request = _request(composer, mutator, rng, service, protocol, operation)
            except NotSerializable:
                continue
            await self._send(connection, request, f"{service}:{operation} ({protocol})")
        await connection.close()

    async def _send(self, connection: Connection, request: RawRequest, name: str) -> None:
        try:
            answer = await connection(request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, AssertionError) as error:
            self._failures.append(f"{name}: no response: {error!r}\n{shown(request)}")
            await connection.close()
            return
        wrong = complaint(request, answer)
        if wrong is not None:
            self._failures.append(f"{name}: {wrong}: {answer.body[:500]!r}\n{shown(request)}")
        self._count(answer)
        if answer.status < 300:
            self._knowledge.learn(name.partition(":")[0], answer)

    def _count(self, answer: Answer) -> None:
        self._codes[f"{answer.status // 100}xx"] += 1
        if answer.status >= 400:
            self._codes[answer.code] += 1


def _request(composer: Composer, mutator: Mutator, rng: Random, service: str, protocol: str, operation: str) -> RawRequest:
    """Mutate parameters, bytes, or both; one request in ten stays as it is, so that the state grows."""
    typed, chance = protocol in TYPED, rng.random()
    params = composer.params(service, protocol, operation)
    if chance < (0.6 if typed else 0.8):
        params = mutator.params(params, typed=typed)
    request = serialized(service, protocol, operation, _without_waits(params))
    if len(request.path) + len(request.query) > TARGET_MAX:
        raise NotSerializable(operation)
    return mutator.request(request) if (0.5 if typed else 0.75) < chance < 0.9 else request


def _without_waits(params: Params) -> Params:
    """A long poll would only take time."""
    if isinstance(params, dict) and params.get("WaitTimeSeconds") in range(1, 21):
        return {**params, "WaitTimeSeconds": 0}
    return params
