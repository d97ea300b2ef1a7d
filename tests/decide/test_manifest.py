"""Parsing of manifests, and the errors for documents that are not manifests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.objects.manifest import DOCKER_IMAGE, DOCKER_LIST, OCI_IMAGE, OCI_INDEX, NotAManifest, read_manifest
from corral.model.image import Manifest

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")
FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"


def part(digest: Any = A, size: Any = 1, **more: Any) -> dict[str, Any]:
    return {"digest": digest, "size": size, **more}


def image(**more: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": DOCKER_IMAGE, "config": part(A, 7), "layers": [part(B, 10), part(C, 20)], **more}


def index(**more: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [part(A), part(B), part(A)], **more}


def read(document: Any, media_type: str | None = None) -> Manifest:
    return read_manifest(json.dumps(document).encode(), media_type)


PARTS = {A: 7, B: 10, C: 20}


@pytest.mark.parametrize(
    ("document", "media_type", "expected"),
    [
        (image(), DOCKER_IMAGE, Manifest(DOCKER_IMAGE, None, PARTS, (), None, 30)),
        (image(), None, Manifest(DOCKER_IMAGE, None, PARTS, (), None, 30)),
        (image(mediaType=OCI_IMAGE), None, Manifest(OCI_IMAGE, None, PARTS, (), None, 30)),
        (image(mediaType=None), OCI_IMAGE, Manifest(OCI_IMAGE, None, PARTS, (), None, 30)),
        (image(mediaType=None), None, Manifest(OCI_IMAGE, None, PARTS, (), None, 30)),
        (image(mediaType=OCI_IMAGE, artifactType="a"), None, Manifest(OCI_IMAGE, "a", PARTS, (), None, 30)),
        (
            image(mediaType=OCI_IMAGE, config=part(A, 7, mediaType="c")), None,
            Manifest(OCI_IMAGE, "c", PARTS, (), None, 30),
        ),
        (image(subject=part(C)), None, Manifest(DOCKER_IMAGE, None, PARTS, (), C, 30)),
        (image(layers=[part(B, 10, mediaType=FOREIGN)]), None, Manifest(DOCKER_IMAGE, None, {A: 7}, (), None, 0)),
        (image(layers=[]), None, Manifest(DOCKER_IMAGE, None, {A: 7}, (), None, 0)),
        (image(layers=[part(A, 7)]), None, Manifest(DOCKER_IMAGE, None, {A: 7}, (), None, 7)),
        (index(), OCI_INDEX, Manifest(OCI_INDEX, None, {}, (A, B), None, 0)),
        (index(mediaType=None), None, Manifest(OCI_INDEX, None, {}, (A, B), None, 0)),
        (index(mediaType=DOCKER_LIST, manifests=[]), None, Manifest(DOCKER_LIST, None, {}, (), None, 0)),
    ],
)  # fmt: skip
def test_a_manifest_is_parsed(document: Any, media_type: str | None, expected: Manifest) -> None:
    assert read(document, media_type) == expected


@pytest.mark.parametrize(
    ("document", "media_type", "why"),
    [
        ([], None, "not a JSON object"),
        ({}, None, "schemaVersion None"),
        (image(schemaVersion=1), None, "schemaVersion 1 "),
        (image(), OCI_IMAGE, "but the request has"),
        (image(mediaType="x"), None, "type x is not supported"),
        (image(mediaType=["x"]), None, "is not supported"),
        (image(mediaType=None), "text/plain", "type text/plain is not supported"),
        (image(config=None), None, "no config"),
        (image(config="x"), None, "no config"),
        (image(config={}), None, "is not valid: use sha256:"),
        (image(layers=None), None, "no list of layers"),
        (image(layers={}), None, "no list of layers"),
        (image(layers=["x"]), None, "is not valid: use sha256:"),
        (image(layers=[part("sha256:12")]), None, "The digest 'sha256:12' in layers"),
        (image(layers=[part(B + "0")]), None, "is not valid: use sha256:"),
        (image(layers=[part("sha512:" + "0" * 128)]), None, "is not valid: use sha256:"),
        (image(layers=[part(B, -1)]), None, "The size -1 "),
        (image(layers=[part(B, "1")]), None, "The size '1' "),
        (image(layers=[part(B, True)]), None, "The size True "),
        (image(layers=[part(B, 2**63)]), None, "The size 9223372036854775808 "),
        (image(artifactType=["x"]), None, "The artifactType ['x'] "),
        (image(mediaType=OCI_IMAGE, config=part(mediaType={})), None, "The artifactType {} "),
        (image(subject="x"), None, "subject of the manifest"),
        (index(manifests=None), None, "no list of manifests"),
        (index(manifests=[{"digest": 1}]), None, "is not valid: use sha256:"),
    ],
)
def test_an_invalid_manifest_is_refused(document: Any, media_type: str | None, why: str) -> None:
    with pytest.raises(NotAManifest, match=re.escape(why)):
        read(document, media_type)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([A, OCI_IMAGE, OCI_INDEX]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["digest", "size", "mediaType"]), inner),
    max_leaves=10,
)
NAMES = ("schemaVersion", "mediaType", "config", "layers", "manifests", "subject", "artifactType")


@given(changed=st.dictionaries(st.sampled_from(NAMES), VALUES), base=st.sampled_from([image(), index(), {}]))
def test_any_document_is_parsed_or_refused(changed: dict[str, Any], base: dict[str, Any]) -> None:
    try:
        found = read(base | changed)
    except NotAManifest:
        return
    assert found.size >= 0
    assert isinstance(found.artifact_type, str | None)


@given(body=st.binary(max_size=30))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(NotAManifest):
        read_manifest(body, None)
