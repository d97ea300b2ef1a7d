"""A run that waits for an image of Corral's registry pulls it as soon as a client has pushed it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.transactions import Tx
from corral.model.agent_protocol import ImagePush
from corral.model.principal import ROOT
from corral.model.settings import Settings
from corral.node.docker_api import EngineError
from corral.node.docker_images import CannotPull, EngineImages, split_name
from corral.services.ecr import image_storage
from corral.services.ecr.image_names import pull_from_here
from corral.store import Store
from simulation.test_claim_queue import Small

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{sha256(INDEX).hexdigest()}"


def test_a_push_is_sent_to_the_hosts_under_the_names_that_they_pull() -> None:
    settings = Settings(account="123456789012", endpoint_url="http://127.0.0.1:4566")
    world = Small(1, settings=settings)
    orders: list[list[ImagePush]] = []

    def push(tag: str | None) -> None:
        def handler(tx: Tx[Store]) -> None:
            name, region = "team/app", "eu-west-1"
            repository = tx.store.images.repository(region, name) or tx.store.images.add_repository(region, name, 0.0, {}, {}, ROOT)
            image_storage.put_image(tx, repository, INDEX, None, tag, writer=None)

        outcome = world.core.transact([Command(handler, lambda answer: None)])
        assert not outcome.faults
        orders.append([push for of_host in outcome.orders.values() for push in of_host.pushed])

    push(None)
    push("latest")
    push("latest")  # again: a run may wait although the image existed, because the registry did not respond
    told = [{(each.image, reference) for each in pushes for reference in each.references} for pushes in orders]
    ecr = f"{settings.account}.dkr.ecr.eu-west-1.amazonaws.com/team/app"
    names = [f"{ecr}@{DIGEST}", ecr, f"{ecr}:latest", f"{ecr}:latest@{DIGEST}", f"{ecr}:other", f"{ecr}2"]
    for controls_host in (False, True):
        pulled = [pull_from_here(settings, name, "us-east-1", 0.0, controls_host=controls_host) for name in names]
        found = [[split_name(each.image) in push for push in told] for each in pulled if each is not None]
        assert found == [[True] * 3, [False, True, True], [False, True, True], [True] * 3, [False] * 3, [False] * 3]


class StoppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still. So no pause ends, and only events do."""

    def time(self) -> float:
        return 1000.0


class FailingEngine:
    """An engine whose registry has no image at first. `may_respond` holds back the responses to pulls."""

    def __init__(self) -> None:
        self.pulls = 0
        self.registry_has_it = self.has_it = False
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    @asynccontextmanager
    async def stream(self, *_: Any, **more: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.pulls += 1
        finds = self.registry_has_it
        await self.may_respond.wait()
        if not finds:
            raise EngineError(404, "manifest unknown")

        async def parts() -> AsyncIterator[bytes]:
            self.has_it = True
            yield b'{"status":"done"}\n'

        yield parts()

    async def get(self, path: str) -> dict[str, Any]:
        if not self.has_it:
            raise EngineError(404, "no such image")
        return {"Id": "sha256:1", "Size": 1}


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("during_a_pull", [False, True], ids=["in the pause between two pulls", "during a pull that fails"])
def test_a_push_ends_the_pause_between_two_pulls(tmp_path: Path, during_a_pull: bool) -> None:
    """Two runs wait for the tag and one for the digest. A push of another image changes nothing."""

    async def wait_for_a_push() -> None:
        engine = FailingEngine()
        images = EngineImages(engine, tmp_path / "images.json", {}, VirtualClock(0.0))  # type: ignore[arg-type]
        given_up = asyncio.Event()
        names = ["localhost:4566/ecr.us-east-1/app:v1"] * 2 + [f"localhost:4566/ecr.us-east-1/app@{DIGEST}"]
        if during_a_pull:
            engine.may_respond.clear()
        waiting = [asyncio.create_task(images.pull(name, "", lambda text: None, given_up)) for name in names]
        await settle()
        assert engine.pulls == 2, "the runs that wait for the tag share a pull"
        images.pushed(ImagePush("localhost:4566/ecr.us-east-1/app", ["v2"]))
        images.pushed(ImagePush("localhost:4566/ecr.eu-west-1/app", ["v1", DIGEST]))
        await settle()
        assert engine.pulls == 2
        engine.registry_has_it = True
        images.pushed(ImagePush("localhost:4566/ecr.us-east-1/app", [DIGEST, "v1"]))
        engine.may_respond.set()
        await settle()
        assert [each.done() for each in waiting] == [True] * 3 and engine.pulls == 4
        for each in waiting:
            each.result()

        engine.registry_has_it = engine.has_it = False
        stopped = asyncio.create_task(images.pull(names[0], "", lambda text: None, given_up))
        await settle()
        given_up.set()
        await settle()
        assert isinstance(stopped.exception(), CannotPull)

    with asyncio.Runner(loop_factory=StoppedLoop) as runner:
        runner.run(wait_for_a_push())
