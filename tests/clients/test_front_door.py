"""The HTTP port with hostile bytes, bad signatures and foreign data folders: Corral refuses them and stays up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from harness import Corral, container

DEEP = b"[" * 100_000
TARGET = "AmazonEC2ContainerServiceV20141113."


def raw(corral: Corral, data: bytes) -> tuple[int, bytes]:
    """Send bytes and read one HTTP response."""
    host, port = corral.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = connection.recv(65536)
            if not part:
                break
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        while lengths and len(body) < int(lengths[0].split(b":")[1]):
            body += connection.recv(65536)
    return int(head.split(b" ")[1]), body


def signed(corral: Corral, body: bytes, target: str = "ListTasks") -> bytes:
    """Return a signed ECS request with any body, as bytes."""
    headers = {"X-Amz-Target": TARGET + target, "Content-Type": "application/x-amz-json-1.1"}
    request = AWSRequest("POST", f"{corral.url}/", headers=headers, data=body)
    keys = corral.keys
    SigV4Auth(Credentials(keys["access_key"], keys["secret_key"]), "ecs", "us-east-1").add_auth(request)
    head = ["POST / HTTP/1.1", "Host: " + corral.url.removeprefix("http://"), f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "body",
    [b'{"cluster": "def', b"", b"null", b"[]", b'"x"', DEEP, b'{"a":' * 5000, b'{"cluster": 5}', b'{"maxResults": "many"}',
     b'{"maxResults": 1e400}', b'{"maxResults": NaN}', b'{"cluster": "\xff\xfe"}', b"\x00" * 100,
     b'{"maxResults": 99999999999999999999}', b'{"cluster": {"x": []}}', b'{"cluster": "\\ud800"}'],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_hostile_bodies(corral, body):
    status, answer = raw(corral, signed(corral, body))
    assert 400 <= status < 500 or (status == 200 and body in (b"", b"null")), answer
    if status != 200:
        assert "__type" in json.loads(answer), "typed"
        assert b"Traceback" not in answer
    assert corral.client("sts").get_caller_identity()


@pytest.mark.parametrize("target", ["NoSuchOperation", "", "RunTask.Extra", "../../etc/passwd", "é"])
def test_unknown_targets(corral, target):
    data = f"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: {TARGET}{target}\r\nContent-Length: 2\r\n\r\n{{}}"
    status, answer = raw(corral, data.encode())
    assert 400 <= status < 500 and json.loads(answer)["__type"]


def test_huge_headers(corral):
    at_once = b"POST / HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 200_000 + b"\r\nContent-Length: 2\r\n\r\n{}"
    assert raw(corral, at_once)[0] == 431
    never_ending = b"POST / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: yes\r\n" * 100_000
    try:
        status, answer = raw(corral, never_ending)
        assert status == 431 and json.loads(answer)["__type"]
    except ConnectionError:
        pass  # the server closed the connection while the client was sending
    assert corral.client("sts").get_caller_identity()


def test_a_body_over_its_limit(corral):
    head = signed(corral, b"")
    status, answer = raw(corral, head.replace(b"Content-Length: 0", b"Content-Length: 99999999999") + b"{}")
    assert status == 413 and json.loads(answer)["__type"]
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    try:
        head = head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        status, _ = raw(corral, head + chunk * 20 + b"0\r\n\r\n")
        assert status == 413
    except ConnectionError:
        pass
    assert corral.client("sts").get_caller_identity()


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET", b"POST / HTTP/9.9", b"\x00" * 1000])
def test_what_is_not_http(corral, garbage):
    with suppress(ConnectionError, IndexError):  # the server may close the connection
        assert 400 <= raw(corral, garbage + b"\r\n\r\n")[0] < 500
    assert corral.client("sts").get_caller_identity()


def test_bad_signatures(corral):
    def refused(code: str, **changes: str) -> None:
        keys = {"aws_access_key_id": corral.keys["access_key"], "aws_secret_access_key": corral.keys["secret_key"]} | changes
        ecs = boto3.session.Session().client("ecs", region_name="us-east-1", endpoint_url=corral.url, **keys)
        with pytest.raises(ClientError) as raised:
            ecs.list_tasks()
        assert raised.value.response["Error"]["Code"] == code

    refused("InvalidSignatureException", aws_secret_access_key="wrong")
    refused("UnrecognizedClientException", aws_access_key_id="AKIAUNKNOWN")
    refused("UnrecognizedClientException", aws_session_token="made-up")
    unsigned = f"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: {TARGET}ListTasks\r\nContent-Length: 2\r\n\r\n{{}}"
    status, answer = raw(corral, unsigned.encode())
    assert status in (400, 403) and json.loads(answer)["__type"] == "MissingAuthenticationTokenException"


def test_a_presigned_url(corral):
    url = corral.client("sts").generate_presigned_url("get_caller_identity", HttpMethod="GET")
    with urllib.request.urlopen(url) as answer:
        assert b"123456789012" in answer.read()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url.replace("GetCallerIdentity", "GetSessionToken"))


def test_anonymous_requests_learn_nothing(corral):
    with urllib.request.urlopen(f"{corral.url}/_corral/health") as answer:
        assert json.load(answer)["status"] == "ok"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(corral.url, b"{}", {"X-Amz-Target": "Corral.GetStatus"}))


def test_each_api_refuses_a_caller_without_credentials_in_its_own_form(corral):
    def refused(method: str, path: str, **headers: str) -> tuple[int, bytes]:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
        return raw(corral, "\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())

    status, answer = refused("POST", "/", X_Amz_Target=f"{TARGET}ListTasks")
    assert status == 400 and json.loads(answer)["__type"] == "MissingAuthenticationTokenException"
    status, answer = refused("POST", "/?Action=GetCallerIdentity&Version=2011-06-15")
    assert status == 403 and b"<Code>MissingAuthenticationToken</Code>" in answer
    scope = "AKIANOBODY/20260101/us-east-1/s3/aws4_request"
    status, answer = refused(
        "GET", "/bucket/key", Authorization=f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
    )
    assert status in (400, 403) and answer.startswith(b"<?xml") and b"<Error><Code>" in answer
    status, answer = refused("GET", "/v2/")
    assert status == 401 and json.loads(answer)["errors"][0]["code"] == "UNAUTHORIZED"
    status, answer = refused("GET", f"/v2/credentials/{'0' * 32}")
    assert status == 401 and json.loads(answer)["code"] == "Unauthorized"
    status, answer = refused("GET", f"/v4/{'0' * 32}-{'0' * 32}/task")
    assert status == 404 and json.loads(answer)["code"] == "NotFound"
    status, answer = refused("GET", f"/api/{'0' * 32}-{'0' * 32}/task-protection/v1/state")
    assert status == 404 and json.loads(answer)["error"]["Code"] == "ResourceNotFoundException"
    status, answer = refused("POST", "/", X_Amz_Target="Corral.GetStatus")
    assert status == 400 and json.loads(answer)["__type"] == "MissingAuthenticationTokenException"
    status, answer = refused("GET", "/_corral/nothing")
    assert status == 404 and json.loads(answer)["__type"] == "NotFound"


def test_the_page_for_objects_refuses_a_body_that_is_not_a_document_of_its_form(corral):
    for body in (b"", b"[]", b"{", b'{"objects": "\xff"}'):
        request = AWSRequest("POST", f"{corral.url}/_corral/objects", data=body)
        SigV4Auth(Credentials(corral.keys["access_key"], corral.keys["secret_key"]), "corral", "us-east-1").add_auth(request)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(request.url, body, dict(request.headers), method="POST"))
        assert caught.value.code == 400, (body, caught.value.read())


def start(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral.server", "--data", str(data), "--port", "0", "--gpus", "none", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_second_start_on_a_folder_is_refused_and_names_the_process(corral):
    done = start(corral.data)
    assert done.returncode != 0
    assert "in use by corral, process" in done.stderr and "corral down" in done.stderr


@pytest.mark.parametrize("name", ["state.db", "logs.db", "metrics.db"])
def test_a_foreign_folder_is_left_alone(tmp_path, name):
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(b"this is somebody else's file, and not a database" * 100)
    done = start(data)
    assert done.returncode != 0 and str(data / name) in done.stderr
    assert (data / name).read_bytes() == b"this is somebody else's file, and not a database" * 100


def test_wrong_options_say_what_is_right(tmp_path):
    done = start(tmp_path / "data", "--gpus", "sim:0")
    assert done.returncode != 0 and "--gpus" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = start(tmp_path / "data", "--port", str(taken.getsockname()[1]))
        assert done.returncode != 0 and "--port" in done.stderr


def test_without_a_driver_there_are_no_gpus(own_corral):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    corral = own_corral("auto").start()
    ecs = corral.client("ecs")
    [arn] = ecs.list_container_instances()["containerInstanceArns"]
    assert ecs.describe_container_instances(containerInstances=[arn])["containerInstances"][0]["gpuDevices"] == []
    ecs.register_task_definition(family="wants", containerDefinitions=[container(["true"], 1)])
    waiting = ecs.run_task(taskDefinition="wants")["tasks"][0]
    assert "largest host" in waiting["containers"][0]["reason"]
    assert "sim:" in (corral.data / "node" / "agent.log").read_text()


def test_keys_are_private_and_stay(own_corral):
    corral = own_corral("none", "--access-key", "AKIAMINE", "--secret-key", "secret").start()
    assert (corral.data / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert corral.keys == {"access_key": "AKIAMINE", "secret_key": "secret"}
    corral.stop()
    again = Corral(corral.data, "none").start()
    try:
        assert again.client("sts").get_caller_identity()["Account"] == "123456789012"
    finally:
        again.clear()


def test_skewed_clocks_are_refused(corral, monkeypatch):
    late = datetime.now(UTC) - timedelta(minutes=20)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: late.replace(tzinfo=None), raising=False)
    with pytest.raises(ClientError, match=r"Signature expired|SignatureDoesNotMatch|InvalidSignature"):
        corral.client("ecs").list_tasks()
