"""The HTTP API of the image registry. `tests/containers/test_docker_push_pull.py` uses the docker command."""

from __future__ import annotations

import json
import random
import socket
import time
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3
from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from clients.s3_help import MIB, files, new_bucket, sizes, wait_for_blobs
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.server.key_files import session_validity
from corral.services.ecr.image_names import pull_from_here
from corral.services.ecr.registry_passwords import RegistryAccess, password
from harness import REGION, Corral, eventually
from raw_registry import OCI_IMAGE, OCI_INDEX, Registry, digest_of, half_sent, image_of, index_of, new_repository, part, password_of

LAYER = random.Random(1).randbytes(300_000)
PIECES = 100  # of a large layer, 1 MiB each
ACCOUNT = "123456789012"


@pytest.fixture
def registry(corral: Corral) -> Registry:
    return Registry(corral)


@pytest.fixture
def name(corral: Corral) -> str:
    return new_repository(corral)


def memory_mib(corral: Corral) -> float:
    """The peak memory of the server since its start."""
    assert corral.process is not None
    status = Path(f"/proc/{corral.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


# Authentication and paths


def test_the_version_check(registry: Registry):
    for path in ("/v2/", "/v2"):
        assert registry("GET", path).status == 200


@pytest.mark.parametrize(("user", "password"), [("AWS", "wrong"), ("AWS", ""), ("AWS", "ü"), ("other", None)])
def test_a_wrong_password(corral: Corral, user: str, password: str | None):
    stranger = Registry(corral, password, user)
    for method, path in (("GET", "/v2/"), ("GET", "/v2/_catalog"), ("PUT", "/v2/x/manifests/1"), ("GET", "/v2/nowhere")):
        answer = stranger(method, path)
        assert (answer.status, answer.code) == (401, "UNAUTHORIZED")
        host = f"{stranger.address.hostname}:{stranger.address.port}"
        assert answer.headers["www-authenticate"] == f'Basic realm="http://{host}/",service="ecr.amazonaws.com"'
        assert f"docker login --username AWS --password-stdin {host}" in answer.message


def test_no_password(registry: Registry):
    registry.authorization = {}
    assert registry("GET", "/v2/").status == 401


@pytest.mark.parametrize("expires_in_s, task_id", [(-1, None), (3600, 32 * "0")], ids=["expired", "of a task that has ended"])
def test_an_expired_password(corral: Corral, expires_in_s: int, task_id: str | None):
    key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
    late = Registry(corral, password(key, RegistryAccess(root_user(ACCOUNT), REGION, int(time.time()) + expires_in_s, task_id)))
    answer = late("GET", "/v2/")
    assert (answer.status, answer.code) == (403, "DENIED")
    assert answer.message == "Your authorization token has expired. Reauthenticate and try again."


def test_a_password_is_valid_for_one_region(corral: Corral, registry: Registry):
    name = new_repository(corral, "eu-west-1")
    answer = registry("GET", f"/v2/{name}/tags/list")
    assert (answer.status, answer.code) == (404, "NAME_UNKNOWN")
    assert Registry(corral, password_of(corral, "eu-west-1"))("GET", f"/v2/{name}/tags/list").json == {"name": name, "tags": []}


def test_a_host_pulls_from_every_repository(corral: Corral, registry: Registry, name: str):
    """Policies do not limit the password that Corral gives to hosts."""
    manifest = registry.push_image(name, "1", LAYER)
    path = corral.data / "sessions.json"
    key = bytes.fromhex(json.loads(path.read_text())["key"])
    settings = Settings(ACCOUNT, endpoint_url=corral.url, session_key=key, sessions=session_validity(path, key, corral.keys))
    pull = pull_from_here(settings, f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{name}:1", REGION, time.time())
    assert pull is not None
    host = Registry(corral, json.loads(b64decode(pull.auth, altchars=b"-_"))["password"])
    assert host("GET", f"/v2/ecr.{REGION}/{name}/manifests/1").body == manifest
    assert host("GET", f"/v2/ecr.{REGION}/{name}/blobs/{digest_of(LAYER)}").body == LAYER
    for method, path in (  # the password only pulls
        ("PUT", f"{name}/manifests/2"), ("DELETE", f"{name}/manifests/{digest_of(manifest)}"), ("POST", f"{name}/blobs/uploads/"),
        ("DELETE", f"{name}/blobs/{digest_of(LAYER)}"), ("GET", f"{name}/tags/list"), ("GET", "_catalog"),
    ):  # fmt: skip
        answer = host(method, f"/v2/{path}", manifest if method == "PUT" else None, content_type=OCI_IMAGE)
        assert (answer.status, answer.code) == (403, "DENIED") and "only pulls images" in answer.message, path


def test_a_name_may_begin_with_its_region(corral: Corral, registry: Registry, name: str):
    """Hosts put the region before the name. It must be the region of the password."""
    manifest = registry.push_image(name, "1", LAYER)
    assert registry("GET", f"/v2/ecr.us-east-1/{name}/manifests/1").body == manifest
    assert registry("GET", f"/v2/ecr.eu-west-1/{name}/manifests/1").code == "NAME_UNKNOWN"
    other, digest = new_repository(corral), digest_of(LAYER)
    assert registry("POST", f"/v2/{other}/blobs/uploads/?mount={digest}&from=ecr.us-east-1/{name}").status == 201


def test_an_unknown_repository(registry: Registry):
    digest = digest_of(b"")
    for method, path in (
        ("POST", "blobs/uploads/"),
        ("HEAD", f"blobs/{digest}"),
        ("GET", f"blobs/{digest}"),
        ("GET", "manifests/latest"),
        ("PUT", "manifests/latest"),
        ("GET", "tags/list"),
        ("GET", f"referrers/{digest}"),
    ):
        answer = registry(method, f"/v2/no/such/{path}", b"{}" if method == "PUT" else None)
        assert answer.status == 404
        if method != "HEAD":
            assert answer.code == "NAME_UNKNOWN"
            why = f"The repository with name 'no/such' does not exist in the registry with id '{ACCOUNT}'"
            assert answer.message.startswith(why)
            assert "aws ecr create-repository --repository-name no/such" in answer.message


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/name", 404, "UNSUPPORTED"),
        ("GET", "/v2/Name/tags/list", 400, "NAME_INVALID"),
        ("POST", "/v2/_catalog", 405, "UNSUPPORTED"),
        ("PATCH", "/v2/name/blobs/sha256:0", 405, "UNSUPPORTED"),
    ],
)
def test_unknown_paths_and_methods(registry: Registry, method: str, path: str, status: int, code: str):
    answer = registry(method, path)
    assert (answer.status, answer.code) == (status, code)


def test_s3_objects_named_v2_are_served_by_s3(corral: Corral):
    """With the bucket in the host name, the path of an object can look like the registry's."""
    s3 = corral.client("s3")
    bucket, keys = new_bucket(s3), corral.keys
    s3.put_object(Bucket=bucket, Key="v2/x", Body=b"an object")
    host = f"{bucket}.localhost:{corral.url.rpartition(':')[2]}"
    for sign in (S3SigV4Auth, S3SigV4QueryAuth, HmacV1QueryAuth):
        request, who = (
            AWSRequest("GET", f"http://{host}/v2/x", auth_path=f"/{bucket}/v2/x"),
            Credentials(keys["access_key"], keys["secret_key"]),
        )
        (sign(who) if sign is HmacV1QueryAuth else sign(who, "s3", REGION)).add_auth(request)
        sent = request.prepare()
        answer = urllib3.request("GET", sent.url.replace(host, corral.url[7:]), headers={**sent.headers, "Host": host})
        assert (answer.status, answer.data) == (200, b"an object"), sign


# Layers


def test_a_layer_as_a_chunked_stream(registry: Registry, name: str):
    """Docker sends a layer this way."""
    digest = registry.push(name, LAYER)
    head, got = registry("HEAD", f"/v2/{name}/blobs/{digest}"), registry("GET", f"/v2/{name}/blobs/{digest}")
    for answer in (head, got):
        assert answer.status == 200
        assert answer.headers["content-length"] == str(len(LAYER))
        assert answer.headers["docker-content-digest"] == digest
    assert (head.body, got.body) == (b"", LAYER)


def test_a_layer_in_one_request(registry: Registry, name: str):
    data = random.Random(2).randbytes(1000)
    answer = registry("POST", f"/v2/{name}/blobs/uploads/?digest={digest_of(data)}", data)
    assert (answer.status, answer.headers["location"]) == (201, f"/v2/{name}/blobs/{digest_of(data)}")
    assert registry("GET", answer.headers["location"]).body == data


def test_a_layer_in_two_requests(registry: Registry, name: str):
    data = random.Random(3).randbytes(1000)
    answer = registry("PUT", f"{registry.begin(name)}?digest={digest_of(data)}", data, content_type="application/octet-stream")
    assert answer.status == 201
    assert registry("GET", answer.headers["location"]).body == data


def test_an_empty_layer(registry: Registry, name: str):
    digest = digest_of(b"")
    assert registry("PUT", f"{registry.begin(name)}?digest={digest}").status == 201
    answer = registry("GET", f"/v2/{name}/blobs/{digest}")
    assert (answer.status, answer.body) == (200, b"")


def test_a_layer_in_several_chunks(registry: Registry, name: str):
    data = random.Random(4).randbytes(3000)
    place = registry.begin(name)
    for start in (0, 1000):
        sent = registry("PATCH", place, data[start : start + 1000], content_range=f"{start}-{start + 999}")
        assert (sent.status, sent.headers["range"]) == (202, f"0-{start + 999}")
        place = sent.headers["location"]
        assert sent.headers["docker-upload-uuid"] == place.rpartition("/")[2].partition("?")[0]
    for wrong in ("1000-1999", "2500-2999", "x", "2000-1999"):
        answer = registry("PATCH", place, b"x" * 1000, content_range=wrong)
        assert (answer.status, answer.code, answer.headers["range"]) == (416, "RANGE_INVALID", "0-1999")
    stands = registry("GET", place)
    assert (stands.status, stands.headers["range"], stands.headers["location"]) == (204, "0-1999", place)
    last = registry("PUT", f"{place}?digest={digest_of(data)}", data[2000:], content_range="2000-2999")
    assert last.status == 201
    assert registry("GET", last.headers["location"]).body == data
    gone = registry("GET", place)
    assert (gone.status, gone.code) == (404, "BLOB_UPLOAD_UNKNOWN")


def test_a_chunk_with_a_wrong_size(corral: Corral, registry: Registry, name: str):
    place = registry.begin(name)
    answer = registry("PATCH", place, b"x" * 10, content_range="0-19")
    assert (answer.status, answer.code) == (400, "SIZE_INVALID")
    assert registry("GET", place).status == 404
    eventually(lambda: not [file for file in files(corral) if file.parent.name == "arriving"])


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_layer_with_a_wrong_digest(corral: Corral, registry: Registry, name: str, method: str):
    before, wrong = len(files(corral)), digest_of(b"something else")
    place = registry.begin(name) if method == "PUT" else f"/v2/{name}/blobs/uploads/"
    answer = registry(method, f"{place}?digest={wrong}", LAYER)
    assert (answer.status, answer.code) == (400, "DIGEST_INVALID")
    assert digest_of(LAYER) in answer.message
    assert registry("GET", f"/v2/{name}/blobs/{wrong}").status == 404
    wait_for_blobs(corral, before)


@pytest.mark.parametrize("digest", ["", "sha256:12", "sha512:" + 128 * "0", "latest"])
def test_an_invalid_digest(registry: Registry, name: str, digest: str):
    place = registry.begin(name)
    for answer in (registry("PUT", f"{place}?digest={digest}", b"x"), registry("GET", f"/v2/{name}/blobs/{digest}")):
        assert (answer.status, answer.code) == (400, "DIGEST_INVALID")
    assert registry("GET", place).status == 204


def test_a_cancelled_upload(corral: Corral, registry: Registry, name: str):
    before, place = len(files(corral)), registry.begin(name)
    registry("PATCH", place, LAYER)
    assert len(files(corral)) == before + 1
    assert registry("DELETE", place).status == 204
    assert registry("GET", place).code == "BLOB_UPLOAD_UNKNOWN"
    wait_for_blobs(corral, before)


def test_an_upload_belongs_to_its_repository(corral: Corral, registry: Registry, name: str):
    place, other = registry.begin(name), new_repository(corral)
    assert registry("PATCH", place.replace(name, other), b"x").code == "BLOB_UPLOAD_UNKNOWN"
    assert registry("GET", place).status == 204


@pytest.mark.parametrize(
    ("header", "span"),
    [("bytes=0-0", (0, 1)), ("bytes=100-299", (100, 300)), ("bytes=299990-", (299_990, 300_000)), ("bytes=-5", (299_995, 300_000))],
)
def test_ranges(registry: Registry, name: str, header: str, span: tuple[int, int]):
    digest = registry.push(name, LAYER)
    answer = registry("GET", f"/v2/{name}/blobs/{digest}", Range=header)
    assert (answer.status, answer.body) == (206, LAYER[slice(*span)])
    assert answer.headers["content-range"] == f"bytes {span[0]}-{span[1] - 1}/{len(LAYER)}"


def test_a_range_outside_the_layer(registry: Registry, name: str):
    digest = registry.push(name, LAYER)
    answer = registry("GET", f"/v2/{name}/blobs/{digest}", Range="bytes=300000-")
    assert (answer.status, answer.code, answer.headers["content-range"]) == (416, "RANGE_INVALID", "bytes */300000")


def test_a_layer_mounted_from_another_repository(corral: Corral, registry: Registry, name: str):
    data = random.Random(5).randbytes(1000)
    digest, other = registry.push(name, data), new_repository(corral)
    before = set(files(corral))
    assert registry("HEAD", f"/v2/{other}/blobs/{digest}").status == 404
    answer = registry("POST", f"/v2/{other}/blobs/uploads/?mount={digest}&from={name}")
    assert (answer.status, answer.headers["location"]) == (201, f"/v2/{other}/blobs/{digest}")
    assert registry("GET", answer.headers["location"]).body == data
    assert set(files(corral)) <= before  # garbage of other tests may have been erased
    for query in (f"mount={digest_of(b'no such')}&from={name}", f"mount={digest}&from=no/such", f"mount={digest}"):
        assert registry("POST", f"/v2/{new_repository(corral)}/blobs/uploads/?{query}").status == 202


def test_the_same_layer_is_stored_once(corral: Corral, registry: Registry, name: str):
    """Also if many clients push it at the same time."""
    data = random.Random(6).randbytes(2 * MIB + 17)  # no other blob of this server has this size
    names, password = [name, new_repository(corral)] * 3, password_of(corral)
    with ThreadPoolExecutor(len(names)) as pool:
        digests = list(pool.map(lambda each: Registry(corral, password).push(each, data), names))
    assert set(digests) == {digest_of(data)}
    eventually(lambda: [size for size in sizes(corral) if size == len(data)] == [len(data)], "one blob with the layer")
    for each in set(names):
        assert registry("GET", f"/v2/{each}/blobs/{digests[0]}").body == data


def test_delete_a_layer(corral: Corral, registry: Registry, name: str):
    data = random.Random(7).randbytes(1000)
    before, digest = len(files(corral)), registry.push(name, data)
    manifest = registry.push_image(name, "1", data)
    used = registry("DELETE", f"/v2/{name}/blobs/{digest}")
    assert (used.status, used.code) == (403, "DENIED")
    registry("DELETE", f"/v2/{name}/manifests/{digest_of(manifest)}")
    assert registry("DELETE", f"/v2/{name}/blobs/{digest}").status == 202
    assert registry("DELETE", f"/v2/{name}/blobs/{digest}").code == "BLOB_UNKNOWN"
    wait_for_blobs(corral, before + 1)  # the configuration is kept for an hour


@pytest.mark.parametrize("size", [1_013, 300_013])
def test_a_layer_is_deleted_while_the_body_of_its_download_arrives(corral: Corral, registry: Registry, name: str, size: int):
    """The server sends the response after the body of the request, because the next request follows this body."""
    data, later = random.Random(size).randbytes(size), random.Random(size).randbytes(1_019)
    digest, last = registry.push(name, data), registry.push(name, later)
    with half_sent(registry, f"/v2/{name}/blobs/{digest}", b"x", 2, method="GET") as connection:
        eventually(lambda: registry("GET", "/v2/").status == 200, "the server has read the head")
        for each in (digest, last):
            assert registry("DELETE", f"/v2/{name}/blobs/{each}").status == 202
        eventually(lambda: len(later) not in sizes(corral), "the garbage is erased")
        connection.send(b"x")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, data)
    eventually(lambda: size not in sizes(corral), "the layer is erased after its last download")


# Failed uploads


def test_a_cut_upload_leaves_nothing(corral: Corral, registry: Registry, name: str):
    before, place = len(files(corral)), registry.begin(name)
    with half_sent(registry, place, bytes(3 * MIB), 50 * MIB) as connection:
        eventually(lambda: len(files(corral)) == before + 1)
        busy = registry("PATCH", place, b"x")
        assert (busy.status, busy.code) == (409, "BLOB_UPLOAD_INVALID")
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        eventually(lambda: registry("GET", place).status == 404)
    wait_for_blobs(corral, before)


def test_kill_9_during_an_upload(own_corral: Callable[..., Corral]):
    corral = own_corral("none").start()
    name, registry = new_repository(corral), Registry(corral)
    registry.push_image(name, "1", LAYER)
    kept, place = sorted(files(corral)), registry.begin(name)
    assert len(kept) == 2
    with half_sent(registry, place, bytes(3 * MIB), 50 * MIB):
        eventually(lambda: len(files(corral)) == 3)
        corral.kill("corral.server")
    corral.start()
    assert sorted(files(corral)) == kept
    registry = Registry(corral)
    assert registry("GET", place).code == "BLOB_UPLOAD_UNKNOWN"
    assert registry("GET", f"/v2/{name}/blobs/{digest_of(LAYER)}").body == LAYER
    assert registry.push_image(name, "2", LAYER)


def test_a_large_layer_in_bounded_memory(own_corral: Callable[..., Corral]):
    corral = own_corral("none").start()
    name, registry, piece = new_repository(corral), Registry(corral), random.Random(8).randbytes(MIB)
    registry.push_image(name, "1", LAYER)  # the first push loads code, which is not the memory of the layer
    registry("GET", f"/v2/{name}/blobs/{digest_of(LAYER)}")
    before = memory_mib(corral)
    digest = digest_of(piece * PIECES)
    sent = registry("PATCH", registry.begin(name), (piece for _ in range(PIECES)))
    assert sent.headers["range"] == f"0-{PIECES * MIB - 1}"
    assert registry("PUT", f"{sent.headers['location']}?digest={digest}").status == 201
    assert registry("GET", f"/v2/{name}/blobs/{digest}").body == piece * PIECES
    assert memory_mib(corral) - before < 64


def test_too_many_uploads(registry: Registry, name: str):
    places = list[str]()
    while (answer := registry("POST", f"/v2/{name}/blobs/uploads/")).status == 202:
        places.append(answer.headers["location"])
    assert (answer.status, answer.code) == (429, "TOOMANYREQUESTS")
    assert len(places) <= 256
    for place in places:
        assert registry("DELETE", place).status == 204
    registry.begin(name)


def test_the_connection_stays_open_after_an_error(registry: Registry, name: str):
    first = registry("GET", "/v2/")
    assert first.status == 200
    socket_before = registry.connection.sock
    assert registry("PUT", f"/v2/{name}/manifests/no%20tag", b"x" * 1000).code == "TAG_INVALID"
    assert registry("PATCH", f"/v2/{name}/blobs/uploads/nowhere", b"x" * 100_000).code == "BLOB_UPLOAD_UNKNOWN"
    assert registry.push(name, LAYER)
    assert registry.connection.sock is socket_before is not None


def test_expect_100_continue(registry: Registry, name: str):
    """A client can wait for permission before it sends the body: a refusal comes first."""
    for place, line in ((f"/v2/{name}/blobs/uploads/nowhere", b"HTTP/1.1 404"), (registry.begin(name), b"HTTP/1.1 100")):
        with socket.create_connection((registry.address.hostname, registry.address.port), timeout=30) as raw:
            head = f"PATCH {place} HTTP/1.1\r\nHost: x\r\nAuthorization: {registry.authorization['Authorization']}\r\n"
            raw.sendall(f"{head}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
            assert raw.recv(1000).startswith(line)
            if line.endswith(b"100"):
                raw.sendall(b"bytes")
                assert raw.recv(1000).startswith(b"HTTP/1.1 202")


# Images


def test_an_image_by_tag_and_by_digest(registry: Registry, name: str):
    manifest = registry.push_image(name, "1", LAYER)
    for reference in ("1", digest_of(manifest)):
        for method, body in (("GET", manifest), ("HEAD", b"")):
            answer = registry(method, f"/v2/{name}/manifests/{reference}")
            assert (answer.status, answer.body) == (200, body)
            assert answer.headers["content-type"] == "application/vnd.oci.image.manifest.v1+json"
            assert answer.headers["content-length"] == str(len(manifest))
            assert answer.headers["docker-content-digest"] == digest_of(manifest)


def test_a_tag_moves(registry: Registry, name: str):
    registry.push_image(name, "latest", LAYER)
    second = registry.push_image(name, "latest", LAYER, b"more")
    assert registry("GET", f"/v2/{name}/manifests/latest").body == second
    assert registry("GET", f"/v2/{name}/tags/list").json["tags"] == ["latest"]


def test_an_immutable_tag(corral: Corral, registry: Registry):
    name = new_repository(corral, imageTagMutability="IMMUTABLE")
    manifest = registry.push_image(name, "1", LAYER)
    assert registry.put(name, "1", manifest).status == 201  # the same image again is allowed
    registry.push(name, b"more")
    config = json.loads(manifest)["config"]
    other = image_of(b"", b"more", config=config)
    answer = registry.put(name, "1", other)
    assert (answer.status, answer.code) == (400, "TAG_INVALID")
    why = f"The image tag '1' already exists in the '{name}' repository and cannot be overwritten because the tag is immutable."
    assert answer.message == why
    assert registry("GET", f"/v2/{name}/manifests/1").body == manifest


def test_an_image_without_its_layers(registry: Registry, name: str):
    registry.push(name, b"{}")
    answer = registry.put(name, "1", image_of(b"{}", b"never sent"))
    assert (answer.status, answer.code) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert digest_of(b"never sent") in answer.message


@pytest.mark.parametrize(
    ("reference", "manifest", "media_type", "code"),
    [
        ("1", b"", "application/json", "MANIFEST_INVALID"),
        ("1", b"not json", "", "MANIFEST_INVALID"),
        ("1", b"[]", "", "MANIFEST_INVALID"),
        ("1", image_of(b"{}"), "application/json", "MANIFEST_INVALID"),
        ("1", image_of(b"{}", schemaVersion=1), "", "MANIFEST_INVALID"),
        ("no%20tag", image_of(b"{}"), "", "TAG_INVALID"),
        ("x" * 129, image_of(b"{}"), "", "TAG_INVALID"),
        (digest_of(b"another"), image_of(b"{}"), "", "DIGEST_INVALID"),
        ("sha256:1", image_of(b"{}"), "", "DIGEST_INVALID"),
        ("1", b"x" * (4 * MIB + 1), "", "SIZE_INVALID"),
    ],
)
def test_an_invalid_manifest(registry: Registry, name: str, reference: str, manifest: bytes, media_type: str, code: str):
    registry.push(name, b"{}")
    answer = registry.put(name, reference, manifest, media_type)
    assert (answer.status, answer.code) == (400, code)
    assert registry("GET", f"/v2/{name}/tags/list").json["tags"] == []


def test_a_missing_image(registry: Registry, name: str):
    for reference in ("latest", digest_of(b"")):
        for method in ("GET", "DELETE"):
            answer = registry(method, f"/v2/{name}/manifests/{reference}")
            assert (answer.status, answer.code, answer.message) == (404, "MANIFEST_UNKNOWN", "Requested image not found")


def test_an_index(registry: Registry, name: str):
    amd, arm = (registry.push_image(name, digest_of_next, LAYER, bytes([at])) for at, digest_of_next in enumerate(("amd", "arm")))
    index = index_of(amd, arm)
    missing = registry.put(name, "both", index_of(amd, b"{}"), OCI_INDEX)
    assert (missing.status, missing.code) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert registry.put(name, "both", index, OCI_INDEX).status == 201
    answer = registry("GET", f"/v2/{name}/manifests/both", Accept=OCI_INDEX)
    assert (answer.body, answer.headers["content-type"]) == (index, OCI_INDEX)
    refused = registry("DELETE", f"/v2/{name}/manifests/{digest_of(amd)}")
    assert (refused.status, refused.code) == (403, "DENIED")
    assert digest_of(index) in refused.message
    for manifest in (index, amd, arm):
        assert registry("DELETE", f"/v2/{name}/manifests/{digest_of(manifest)}").status == 202
    assert registry("GET", f"/v2/{name}/tags/list").json["tags"] == []


def test_delete_a_tag(registry: Registry, name: str):
    manifest = registry.push_image(name, "1", LAYER)
    registry.put(name, "2", manifest)
    assert registry("DELETE", f"/v2/{name}/manifests/1").status == 202
    assert registry("GET", f"/v2/{name}/tags/list").json["tags"] == ["2"]
    assert registry("DELETE", f"/v2/{name}/manifests/2").status == 202
    assert registry("GET", f"/v2/{name}/manifests/{digest_of(manifest)}").body == manifest


def test_tags_in_pages(registry: Registry, name: str):
    manifest = registry.push_image(name, "t0", LAYER)
    for number in range(1, 5):
        registry.put(name, f"t{number}", manifest)
    path, found = f"/v2/{name}/tags/list?n=2", list[list[str]]()
    while path:
        answer = registry("GET", path)
        found.append(answer.json["tags"])
        path = answer.headers.get("link", "").partition(">")[0].lstrip("<")
    assert found == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    assert registry("GET", f"/v2/{name}/tags/list?n=0").json["tags"] == []
    assert registry("GET", f"/v2/{name}/tags/list?last=t3").json["tags"] == ["t4"]


def test_the_catalog(corral: Corral):
    registry = Registry(corral, password_of(corral, "ap-south-1"))
    names = sorted(new_repository(corral, "ap-south-1") for _ in range(3))
    assert registry("GET", "/v2/_catalog").json == {"repositories": names}
    first = registry("GET", "/v2/_catalog?n=2")
    assert first.json == {"repositories": names[:2]}
    following = first.headers["link"].partition(">")[0].lstrip("<")
    assert registry("GET", following).json == {"repositories": names[2:]}


def test_referrers(registry: Registry, name: str):
    subject = registry.push_image(name, "1", LAYER)
    about = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest_of(subject), "size": len(subject)}
    registry.push(name, b"{}")
    signature = image_of(b"{}", subject=about, artifactType="application/a.signature", annotations={"by": "me"})
    answer = registry.put(name, digest_of(signature), signature)
    assert (answer.status, answer.headers["oci-subject"]) == (201, digest_of(subject))
    papers = image_of(b"{}", subject=about, config=part(b"{}", "application/a.paper"))
    registry.put(name, digest_of(papers), papers)
    found = registry("GET", f"/v2/{name}/referrers/{digest_of(subject)}")
    assert (found.status, found.headers["content-type"]) == (200, OCI_INDEX)
    kinds = {each["artifactType"]: each["digest"] for each in found.json["manifests"]}
    assert kinds == {"application/a.signature": digest_of(signature), "application/a.paper": digest_of(papers)}
    [one] = [each for each in found.json["manifests"] if each["digest"] == digest_of(signature)]
    assert (one["size"], one["annotations"], one["mediaType"]) == (len(signature), {"by": "me"}, about["mediaType"])
    some = registry("GET", f"/v2/{name}/referrers/{digest_of(subject)}?artifactType=application/a.paper")
    assert [each["digest"] for each in some.json["manifests"]] == [digest_of(papers)]
    assert some.headers["oci-filters-applied"] == "artifactType"
    assert registry("GET", f"/v2/{name}/referrers/{digest_of(b'none')}").json["manifests"] == []


def test_large_manifests_are_returned_in_small_numbers(corral: Corral, registry: Registry, name: str):
    """A response with all of them would need gigabytes of the server's memory."""
    subject = digest_of(b"subject")
    registry.push(name, b"{}")
    about = {"subject": {"mediaType": OCI_IMAGE, "digest": subject, "size": 7}, "artifactType": "application/a.paper"}
    images = [image_of(b"{}", **about, annotations={"text": str(number) * 3_000_000}) for number in range(3)]
    for image in images:
        assert registry.put(name, digest_of(image), image).status == 201
    path, found = f"/v2/{name}/referrers/{subject}?artifactType=application/a.paper", []
    for count in (2, 1):
        page = registry("GET", path)
        assert len(page.json["manifests"]) == count
        found += [each["digest"] for each in page.json["manifests"]]
        path = page.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert (found, path) == ([digest_of(image) for image in images], "")
    ecr, ids = corral.client("ecr"), [{"imageDigest": digest_of(image)} for image in images]
    assert len(ecr.batch_get_image(repositoryName=name, imageIds=ids[:2])["images"]) == 2
    with pytest.raises(ecr.exceptions.InvalidParameterException, match="request fewer images"):
        ecr.batch_get_image(repositoryName=name, imageIds=ids)


def test_ecr_lists_pushed_images(corral: Corral, registry: Registry, name: str):
    manifest = registry.push_image(name, "1", LAYER)
    ecr = corral.client("ecr")
    assert "lastRecordedPullTime" not in ecr.describe_images(repositoryName=name)["imageDetails"][0]
    registry("HEAD", f"/v2/{name}/manifests/1")
    registry("GET", f"/v2/{name}/manifests/1")
    [image] = ecr.describe_images(repositoryName=name)["imageDetails"]
    assert (image["imageDigest"], image["imageTags"], image["imageSizeInBytes"]) == (digest_of(manifest), ["1"], len(LAYER))
    assert image["lastRecordedPullTime"] >= image["imagePushedAt"]


def test_a_tls_handshake_is_refused_and_not_logged(corral: Corral):
    """Docker sends one before each pull from a registry on localhost, and continues with plain HTTP."""
    with socket.create_connection(("127.0.0.1", int(corral.url.rpartition(":")[2]))) as plain:
        plain.sendall(bytes.fromhex("16030100f8010000f40303") + b"\0" * 240)
        assert plain.recv(12) == b"HTTP/1.1 400"
    assert "Invalid HTTP request" not in corral.log()
