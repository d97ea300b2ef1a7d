"""Repositories, images and layers of the registry (ECR)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from corral.model.principal import ROOT

# ECR allows 300 characters. The specification of the registry protocol allows only 128.
TAG_PATTERN = "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,299}"
ACCOUNT_SETTINGS = {  # name → allowed values; the first is the default
    "BASIC_SCAN_TYPE_VERSION": ("AWS_NATIVE", "CLAIR"),
    "REGISTRY_POLICY_SCOPE": ("V2", "V1"),
    "BLOB_MOUNTING": ("ENABLED", "DISABLED"),
}


class Repository(Struct, frozen=True):
    id: int
    region: str
    name: str
    created_at_s: float
    about: dict[str, Any]  # the settings and policies of the repository, by their names in ECR: imageTagMutability, policyText, …
    tags: dict[str, str] = field(default_factory=dict)
    owner: str = ROOT  # see `model/principal.py`


class Manifest(Struct, frozen=True):
    """The members of a manifest that Corral needs."""

    media_type: str
    artifact_type: str | None
    layers: dict[str, int]  # digest → size in bytes; includes the configuration
    images: tuple[str, ...]  # the digests of the images of an index; empty if the manifest is not an index
    subject: str | None  # the digest of another image, to which this manifest adds something, for example a signature
    size: int  # total size of all layers in bytes, compressed


class RegistryImage(Struct, frozen=True):
    number: int  # a later push has a larger number
    repository_id: int
    digest: str
    media_type: str
    artifact_type: str | None
    size: int
    subject: str | None
    pushed_at_s: float
    pulled_at_s: float | None
    tags: tuple[str, ...]


class Layer(Struct, frozen=True):
    digest: str
    content: int  # the id of its content; `tx.store.objects.slices` returns the bytes
    size: int
