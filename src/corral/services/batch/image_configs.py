"""Reads NVIDIA_VISIBLE_DEVICES from the configurations of images. A job gets GPUs if its image sets this environment variable.

Only images in Corral's own registry are read. The configuration of an image is a JSON file. The server reads the file before the
handler of SubmitJob runs (`fetch`), because handlers must not read files. The value is cached by the digest of the configuration,
because a digest always belongs to the same configuration.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.objects.manifest import INDEXES
from corral.model.blob import Slice
from corral.model.image import Layer, Repository
from corral.model.json_documents import read_json
from corral.services.batch.job_definitions import find_definition
from corral.services.ecr.image_names import own_image
from corral.store import Store

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
PARAMETER = "_config "  # the server adds a configuration to a request as a parameter with this prefix and the digest
CONFIG_MAX_BYTES = 1_000_000
CACHED_MAX = 10_000
NO_GPU = ("", "none", "void")

_visible_devices: dict[str, str] = {}  # digest of a configuration → value of the variable; "" if the value names no GPU


def fetch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, tuple[Slice, ...]]:
    """Find the image configurations that SubmitJob needs and that are not cached. Return parameter name → slices of blobs.

    The server reads these slices, and adds the configurations to the request as parameters with these names.
    """
    try:
        definition = find_definition(tx, caller.region, params["jobDefinition"], caller.owner)
    except ApiError:
        return {}  # the handler refuses the request
    found: dict[str, tuple[Slice, ...]] = {}
    for image in definition.images if definition is not None else ():
        config = _config_of(tx, caller.region, image)
        if config is not None and config.digest not in _visible_devices and config.size <= CONFIG_MAX_BYTES:
            found[PARAMETER + config.digest] = tuple(tx.store.objects.slices(config.content, 0, config.size))
    return found


def remember(params: dict[str, Any]) -> None:
    """Cache the values in the configurations that the server has added to a request."""
    for name in [name for name in params if name.startswith(PARAMETER)]:
        while len(_visible_devices) >= CACHED_MAX:
            del _visible_devices[next(iter(_visible_devices))]
        _visible_devices[name.removeprefix(PARAMETER)] = _read(params[name])


def visible_devices(tx: Tx[Store], region: str, image: str) -> str:
    """Return NVIDIA_VISIBLE_DEVICES of an image. Return "" if the variable names no GPU, or if its value is not cached."""
    config = _config_of(tx, region, image)
    return _visible_devices.get(config.digest, "") if config is not None else ""


def _config_of(tx: Tx[Store], region: str, image: str) -> Layer | None:
    own = own_image(tx.settings, image, region)
    if own is None:
        return None
    name, _, digest = own.name.partition("@")
    name, _, tag = name.partition(":")
    repository = tx.store.images.repository(own.region, name)
    if repository is None:
        return None
    return _config_in(tx, repository, digest or None, None if digest else tag or "latest")


def _config_in(tx: Tx[Store], repository: Repository, digest: str | None, tag: str | None) -> Layer | None:
    found = tx.store.images.image(repository.id, digest=digest, tag=tag)
    if found is None:
        return None
    manifest = read_json(tx.store.images.manifest(found))
    if found.media_type in INDEXES:
        parts = [part["digest"] for part in manifest["manifests"]]
        found = next((part for each in parts if (part := tx.store.images.image(repository.id, digest=each)) is not None), None)
        if found is None or found.media_type in INDEXES:
            return None
        manifest = read_json(tx.store.images.manifest(found))
    return tx.store.images.layer(repository.id, manifest["config"]["digest"])


def _read(body: bytes) -> str:
    """Return the value of NVIDIA_VISIBLE_DEVICES in a configuration, or "" if it names no GPU."""
    try:
        config = read_json(body)
        pairs = [str(each).partition("=") for each in config["config"]["Env"]]
    except (ValueError, KeyError, TypeError):
        return ""
    value = next((value.strip() for name, _, value in pairs if name == VARIABLE), "")
    return "" if value in NO_GPU else value
