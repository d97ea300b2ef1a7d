"""Images and their repositories (ECR)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Repository:
    id: int
    region: str
    name: str
    created_at_s: float
    about: dict[str, Any]  # by ECR's names: imageTagMutability, policies…: what was said of it
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says, as far as anybody has to know."""

    media_type: str
    artifact_type: str | None
    layers: dict[str, int]  # size by digest: its configuration and its layers
    images: tuple[str, ...]  # digests of other manifests, of an index
    subject: str | None  # the digest of the image that this one is about
    size: int  # of all its layers, as they are sent


@dataclass(frozen=True, slots=True)
class Image:
    number: int  # later ones have higher ones
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
    content: int  # where its bytes are: `tx.store.objects.slices`
    size: int
