"""Repositories, images and layers of the registry (ECR)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

TAG_PATTERN = "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,299}"  # ECR's; the registry's specification allows 128 characters
ACCOUNT_SETTINGS = {  # name → its values, the default first
    "BASIC_SCAN_TYPE_VERSION": ("AWS_NATIVE", "CLAIR"),
    "REGISTRY_POLICY_SCOPE": ("V2", "V1"),
    "BLOB_MOUNTING": ("ENABLED", "DISABLED"),
}


class Repository(Struct, frozen=True):
    id: int
    region: str
    name: str
    created_at_s: float
    about: dict[str, Any]  # its settings and policies, by ECR's names: imageTagMutability, policyText, …
    tags: dict[str, str] = field(default_factory=dict)


class Manifest(Struct, frozen=True):
    """The members of a manifest that Corral needs."""

    media_type: str
    artifact_type: str | None
    layers: dict[str, int]  # digest → bytes, of its configuration and its layers
    images: tuple[str, ...]  # of an index: the digests of its images
    subject: str | None  # the digest of the image to which this one refers: a signature has one
    size: int  # bytes of all layers, compressed as they are sent


class RegistryImage(Struct, frozen=True):
    number: int  # grows with each push
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
    content: int  # its bytes: `tx.store.objects.slices`
    size: int
