"""Which layers are kept, which are deleted, and when: on a virtual clock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import COMMANDS_S, Core
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.decide.objects.manifest import DOCKER_IMAGE
from corral.model.blob import StoredBlob
from corral.model.image import RegistryImage, Repository
from corral.model.principal import ROOT
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.reconcile.images import LAYERS_MAX
from corral.services.ecr import image_storage
from corral.services.ecr.errors import LayersNotFoundException
from corral.store import Store

EXAMPLES = int(os.environ.get("CORRAL_EXAMPLES", "25"))
HOUR_S, MOMENT_S = 3600.0, 0.1  # a moment is enough for the work that is due now
NOON_S = 1_000_000_000.0


def digest_of(data: str) -> str:
    return f"sha256:{sha256(data.encode()).hexdigest()}"


def manifest_of(layers: Iterable[str]) -> bytes:
    parts = [{"digest": digest_of(layer), "size": 1} for layer in layers]
    return json.dumps({"schemaVersion": 2, "mediaType": DOCKER_IMAGE, "config": parts[0], "layers": parts[1:]}).encode()


class World:
    """A core in memory. The tests write a layer as a letter."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NOON_S)
        self.store = Store(None)
        self.core = Core(self.store, settings=Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE)
        self.blobs = 0

    def ask(self, handler: Callable[[Tx[Store]], Any]) -> Any:
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults
        [(_, answer)] = outbox.answers
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def repository(self, name: str) -> Repository:
        found = self.store.images.repository("r", name)
        return found or self.ask(lambda tx: tx.store.images.add_repository("r", name, tx.now_s, {}, {}, ROOT))

    def push(self, name: str, layer: str) -> str:
        """The name of the file with the bytes of a layer."""
        self.blobs += 1
        arrived, repository = StoredBlob(f"{self.blobs:032x}", 1, {}), self.repository(name)
        self.ask(lambda tx: image_storage.add_layer(tx, repository, digest_of(layer), arrived))
        return arrived.blob

    def put(self, name: str, layers: Iterable[str], tag: str | None = None) -> RegistryImage:
        repository = self.repository(name)
        return self.ask(lambda tx: image_storage.put_image(tx, repository, manifest_of(layers), None, tag, writer=None)).image

    def drop(self, image: RegistryImage) -> None:
        self.ask(lambda tx: image_storage.drop_image(tx, image))

    def drop_repository(self, name: str) -> None:
        """Delete a repository with all its images and layers, which takes several transactions."""
        repository = self.repository(name)
        self.ask(lambda tx: image_storage.drop_repository(tx, repository))
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        until_s = self.clock.now_s() + seconds
        while (due_s := self.core.next_due_s()) is not None and due_s <= until_s + MOMENT_S:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()))
            assert not self.core.transact([]).faults
        self.clock.advance(max(0.0, until_s - self.clock.now_s()))

    def has(self, name: str, layer: str) -> bool:
        return self.store.images.layer(self.repository(name).id, digest_of(layer)) is not None

    def garbage(self) -> set[str]:
        return set(self.store.objects.garbage(1000))


@pytest.fixture
def world() -> World:
    return World()


def test_a_layer_without_an_image_is_deleted_after_an_hour(world: World):
    blob = world.push("a", "x")
    world.wait(HOUR_S - 1)
    assert world.has("a", "x")
    world.wait(2)
    assert not world.has("a", "x")
    assert world.garbage() == {blob}
    assert world.core.next_due_s() is None


def test_a_layer_is_deleted_an_hour_after_its_last_image(world: World):
    blob = world.push("a", "x")
    for layer in "yz":
        world.push("a", layer)
    first, second = world.put("a", "xy"), world.put("a", "xz")
    world.wait(30 * HOUR_S)
    world.drop(first)
    world.wait(2 * HOUR_S)
    assert (world.has("a", "x"), world.has("a", "y"), world.has("a", "z")) == (True, False, True)
    world.drop(second)
    assert not world.garbage() & {blob}
    world.wait(2 * HOUR_S)
    assert not world.has("a", "x")
    assert blob in world.garbage()


def test_a_layer_of_two_repositories_is_deleted_with_the_last(world: World):
    blob = world.push("a", "x")
    world.put("a", "x")
    layer = world.store.images.layer(world.repository("a").id, digest_of("x"))
    assert layer is not None
    other = world.repository("b")
    world.ask(lambda tx: image_storage.hold_layer(tx, other, layer))
    world.put("b", "x")
    world.drop_repository("a")
    assert world.has("b", "x")
    assert not world.garbage()
    world.drop_repository("b")
    assert world.garbage() == {blob}


def test_many_layers_are_deleted_in_several_transactions(world: World):
    repository = world.repository("a")

    def push_all(tx: Tx[Store]) -> None:
        for number in range(500):
            image_storage.add_layer(tx, repository, digest_of(str(number)), StoredBlob(f"{number:032x}", 1, {}))

    world.ask(push_all)
    world.clock.advance(2 * HOUR_S)
    world.core.timer = lambda: world.store.connection.total_changes * 2 * COMMANDS_S / LAYERS_MAX
    gone = []
    while world.core.next_due_s() is not None:
        world.core.transact([])
        gone.append(len(world.garbage()))
    assert gone[-1] == 500
    assert max(after - before for before, after in zip([0, *gone], gone)) <= LAYERS_MAX


LAYERS, NAMES, TAGS = st.sampled_from("xyz"), st.sampled_from("ab"), st.sampled_from([None, "1", "2"])


class Layers(RuleBasedStateMachine):
    """The store against a model of dicts. No time is exactly an hour: a push at the last moment could be too late."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.layers: dict[str, dict[str, float | None]] = {}  # by repository: unused since
        self.images: dict[tuple[str, str], set[str]] = {}  # (repository, its layers): its tags
        self.kept: dict[str, str] = {}  # the blob of each layer
        self.garbage: set[str] = set()

    def _settle(self) -> None:
        """A blob without an owner is garbage."""
        for layer in [layer for layer in self.kept if not any(layer in each for each in self.layers.values())]:
            self.garbage.add(self.kept.pop(layer))

    def _release(self, name: str, layers: str) -> None:
        for layer in layers:
            if not any(layer in others for each, others in self.images if each == name):
                self.layers[name][layer] = self.world.clock.now_s()

    @rule(name=NAMES, layer=LAYERS)
    def push(self, name: str, layer: str) -> None:
        blob = self.world.push(name, layer)
        if layer in self.kept:
            self.garbage.add(blob)
        else:
            self.kept[layer] = blob
        self._hold(name, layer)

    @rule(name=NAMES, source=NAMES, layer=LAYERS)
    def mount(self, name: str, source: str, layer: str) -> None:
        found = self.world.store.images.layer(self.world.repository(source).id, digest_of(layer))
        assert (found is not None) == (layer in self.layers.get(source, {}))
        if found is not None:
            repository = self.world.repository(name)
            self.world.ask(lambda tx: image_storage.hold_layer(tx, repository, found))
            self._hold(name, layer)

    def _hold(self, name: str, layer: str) -> None:
        if self.layers.setdefault(name, {}).get(layer, 0.0) is not None:
            self.layers[name][layer] = self.world.clock.now_s()

    @rule(name=NAMES, layers=st.sets(LAYERS, min_size=1), tag=TAGS)
    def push_image(self, name: str, layers: set[str], tag: str | None) -> None:
        for layer in sorted(layers):
            self.push(name, layer)
        self.put(name, layers, tag)

    @rule(name=NAMES, layers=st.sets(LAYERS, min_size=1), tag=TAGS)
    def put(self, name: str, layers: set[str], tag: str | None) -> None:
        parts = "".join(sorted(layers))
        if not layers <= set(self.layers.get(name, {})):
            with pytest.raises(LayersNotFoundException):
                self.world.put(name, parts, tag)
            return
        self.world.put(name, parts, tag)
        for layer in layers:
            self.layers[name][layer] = None
        if tag is not None:
            for (each, _), tags in self.images.items():
                if each == name:
                    tags.discard(tag)
        self.images.setdefault((name, parts), set()).update({tag} if tag is not None else ())

    @precondition(lambda self: self.images)
    @rule(data=st.data())
    def drop_image(self, data: st.DataObject) -> None:
        name, parts = data.draw(st.sampled_from(sorted(self.images)))
        digest = f"sha256:{sha256(manifest_of(parts)).hexdigest()}"
        image = self.world.store.images.image(self.world.repository(name).id, digest=digest)
        assert image is not None
        self.world.drop(image)
        del self.images[name, parts]
        self._release(name, parts)

    @rule(name=NAMES, layer=LAYERS)
    def drop_layer(self, name: str, layer: str) -> None:
        repository = self.world.repository(name)
        self.world.ask(lambda tx: image_storage.drop_layer(tx, repository, digest_of(layer)))
        if self.layers.get(name, {}).get(layer) is not None:
            del self.layers[name][layer]
            self._settle()

    @rule(name=NAMES)
    def drop_repository(self, name: str) -> None:
        self.world.drop_repository(name)
        self.layers.pop(name, None)
        self.images = {key: tags for key, tags in self.images.items() if key[0] != name}
        self._settle()

    @rule(seconds=st.sampled_from([700.0, 1900.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)
        now_s = self.world.clock.now_s()
        for layers in self.layers.values():
            for layer in [layer for layer, since_s in layers.items() if since_s is not None and now_s >= since_s + HOUR_S]:
                del layers[layer]
        self._settle()

    @rule()
    def erase(self) -> None:
        """Delete garbage, as the server's garbage collection does."""
        self.world.ask(lambda tx: tx.store.objects.drop_garbage(tx.store.objects.garbage(1000)))
        self.garbage.clear()

    @invariant()
    def it_is_as_expected(self) -> None:
        world, images = self.world, self.world.store.images
        assert world.garbage() == self.garbage
        blobs = {*self.kept.values(), *self.garbage}
        assert world.store.objects.known_blobs([f"{number:032x}" for number in range(world.blobs + 1)]) == blobs
        for name in "ab":
            repository_id = world.repository(name).id
            found = {layer for layer in "xyz" if images.layer(repository_id, digest_of(layer)) is not None}
            assert found == set(self.layers.get(name, {}))
            unused = {layer for layer in found if images.is_unused(repository_id, digest_of(layer))}
            assert unused == {layer for layer, since_s in self.layers.get(name, {}).items() if since_s is not None}
            tags = {image.digest: set(image.tags) for image in images.images(repository_id, 0, 1000)}
            expected = {parts: tags for (each, parts), tags in self.images.items() if each == name}
            assert tags == {f"sha256:{sha256(manifest_of(parts)).hexdigest()}": tags for parts, tags in expected.items()}

    def teardown(self) -> None:
        self.world.store.close()


TestLayers = Layers.TestCase
TestLayers.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
