"""Repositories, images and layers of the registry (ECR)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TAG_PATTERN = "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,299}"  # ECR's; the registry's specification allows 128 characters
ACCOUNT_SETTINGS = {  # name → its values, the default first
    "BASIC_SCAN_TYPE_VERSION": ("AWS_NATIVE", "CLAIR"),
    "REGISTRY_POLICY_SCOPE": ("V2", "V1"),
    "BLOB_MOUNTING": ("ENABLED", "DISABLED"),
}


@dataclass(frozen=True, slots=True)
class Repository:
    id: int
    region: str
    name: str
    created_at_s: float
    about: dict[str, Any]  # its settings and policies, by ECR's names: imageTagMutability, policyText, …
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The members of a manifest that Corral needs."""

    media_type: str
    artifact_type: str | None
    layers: dict[str, int]  # digest → bytes, of its configuration and its layers
    images: tuple[str, ...]  # of an index: the digests of its images
    subject: str | None  # the digest of the image to which this one refers: a signature has one
    size: int  # bytes of all layers, compressed as they are sent


@dataclass(frozen=True, slots=True)
class RegistryImage:
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


@dataclass(frozen=True, slots=True)
class Layer:
    digest: str
    content: int  # its bytes: `tx.store.objects.slices`
    size: int
