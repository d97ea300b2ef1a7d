"""TLS for clients of other machines: `corral up --tls`. 127.0.1.1 is an address at which this server has TLS."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from command import command_lines
from corral.node.host_address import addresses_for_others
from corral.node.server_access import pin_of
from eventually import eventually
from harness import MAKING_A_CLIENT, REGION, SESSION, Corral
from ports import free_port

NAME = "127.0.1.1"
BODY = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    data = tmp_path_factory.mktemp("tls") / "data"
    further = free_port(NAME)  # the port in the URL; the port of the API has TLS, too
    options = ("--tls", "true", "--tls-names", NAME, "--tls-port", str(further))
    running = Corral(data, "none", *options, "--runtime", "process")
    try:
        yield running.start()
    finally:
        running.clear()


@pytest.fixture(scope="module")
def about(corral: Corral) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((corral.data / "server.json").read_text())
    return found


@pytest.fixture(scope="module")
def port(about: dict[str, Any]) -> int:
    return int(about["url"].rpartition(":")[2])


def bundle(corral: Corral) -> str:
    return str(corral.data / "door" / "ca.pem")


def tls(corral: Corral, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=bundle(corral))
    if version is not None:
        with warnings.catch_warnings():  # of old versions
            warnings.simplefilter("ignore", DeprecationWarning)
            made.minimum_version = made.maximum_version = version
    return made


def secure_client(corral: Corral, service: str, url: str) -> Any:
    with MAKING_A_CLIENT:
        return SESSION.client(
            service,
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id=corral.keys["access_key"],
            aws_secret_access_key=corral.keys["secret_key"],
            verify=bundle(corral),
            config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
        )


def answer(connection: http.client.HTTPConnection, path: str = "/_corral/health") -> tuple[int, bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def test_the_console_over_tls(corral: Corral, about: dict[str, Any]) -> None:
    """Other machines reach the console with TLS only, and this one without it."""
    client = secure_client(corral, "corral", about["tlsUrl"])
    found = client.create_console_link()
    origin = f"https://{NAME}:{about['consolePort']}"
    assert found["url"] == f"{origin}/"

    def send(connection: http.client.HTTPConnection, path: str, content: Any, **more: str) -> tuple[http.client.HTTPResponse, Any]:
        connection.request("POST", path, json.dumps(content), {"origin": origin, "sec-fetch-site": "same-origin", **more})
        response = connection.getresponse()
        return response, json.loads(response.read())

    secure = http.client.HTTPSConnection(NAME, about["consolePort"], context=tls(corral))
    response, session = send(secure, "/session", {"code": found["code"]})
    assert response.status == 200 and response.headers["set-cookie"].endswith("; Secure")
    secrets = {"cookie": response.headers["set-cookie"].partition(";")[0], "x-corral-console": session["secret"]}
    assert send(secure, "/call/ecs/ListTasks", {}, **secrets)[1] == {"taskArns": []}
    assert answer(http.client.HTTPConnection("127.0.0.1", about["consolePort"], timeout=30), "/")[0] == 200


def test_clients_of_aws_over_tls(corral: Corral, about: dict[str, Any]) -> None:
    url = about["tlsUrl"]
    assert url.rpartition(":")[2] != about["url"].rpartition(":")[2]
    assert url.startswith(f"https://{NAME}:") and corral.own("GetStatus")["tlsUrl"] == url
    s3, sqs = secure_client(corral, "s3", url), secure_client(corral, "sqs", url)
    s3.create_bucket(Bucket="tls")
    s3.put_object(Bucket="tls", Key="a", Body=BODY)
    assert s3.get_object(Bucket="tls", Key="a")["Body"].read() == BODY
    link = s3.generate_presigned_url("get_object", Params={"Bucket": "tls", "Key": "a"})
    assert link.startswith(url)
    with urllib.request.urlopen(link, context=tls(corral)) as response:
        assert response.read() == BODY
    queue = sqs.create_queue(QueueName="tls")["QueueUrl"]
    assert queue.startswith(f"{url}/")
    sqs.send_message(QueueUrl=queue, MessageBody="hello")
    assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "hello"
    assert corral.client("sqs").get_queue_url(QueueName="tls")["QueueUrl"].startswith("http://127.0.0.1:")
    queue_arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    allow = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": queue_arn}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [allow]})})
    sns = secure_client(corral, "sns", url)
    topic = sns.create_topic(Name="tls")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn)
    sns.publish(TopicArn=topic, Message="signed")
    [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"]
    envelope = json.loads(message["Body"])
    assert envelope["UnsubscribeURL"].startswith(f"{url}/?")
    with urllib.request.urlopen(envelope["SigningCertURL"], context=tls(corral)) as response:
        assert response.read().startswith(b"-----BEGIN CERTIFICATE-----")
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket="tls", Key="none")


# Reads an object as a worker does. The second read uses the connection of the first, and not `get_object`.
READER = """
from corral.worker.object_reader import ObjectReader
reader = ObjectReader(4)
print([len(reader.read("worker", "a")) for _ in range(2)], reader._has_connected)
"""


def test_workers_over_tls(corral: Corral, about: dict[str, Any]) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="worker")
    s3.put_object(Bucket="worker", Key="a", Body=BODY)
    variables = corral.environment | {"AWS_ENDPOINT_URL": about["tlsUrl"], "AWS_CA_BUNDLE": bundle(corral)}
    done = subprocess.run([sys.executable, "-c", READER], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"[{len(BODY)}, {len(BODY)}] True\n"


def test_which_connections_have_tls(corral: Corral, port: int) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        connection = http.client.HTTPSConnection(NAME, port, context=tls(corral, version), timeout=30)
        assert answer(connection)[0] == answer(connection)[0] == 200
        assert connection.sock.version() == version.name.replace("_", ".")
    with pytest.raises(ssl.SSLError):
        answer(http.client.HTTPSConnection(NAME, port, context=tls(corral, ssl.TLSVersion.TLSv1_1), timeout=30))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        answer(http.client.HTTPSConnection("127.0.1.2", port, context=tls(corral), timeout=30))
    for address in ("127.0.0.1", NAME):
        assert answer(http.client.HTTPConnection(address, port, timeout=30))[0] == 200
    with socket.create_connection(("127.0.0.1", port), 30) as docker:  # tries TLS first, and then plain HTTP
        docker.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        assert docker.makefile("rb").read().startswith(b"HTTP/1.1 400")


def test_clients_learn_the_authority(corral: Corral, about: dict[str, Any], port: int) -> None:
    unverified = ssl._create_unverified_context()
    status, pem = answer(http.client.HTTPSConnection(NAME, port, context=unverified, timeout=30), "/_corral/authority")
    assert status == 200 and pem.decode() == Path(bundle(corral)).read_text()
    assert pin_of(pem.decode()) == about["tlsPin"]
    assert b"PRIVATE" not in pem


@pytest.mark.skipif(not addresses_for_others(), reason="this machine has only loopback addresses")
def test_plain_http_is_refused_where_other_machines_connect(corral: Corral, about: dict[str, Any], port: int) -> None:
    address = addresses_for_others()[0]
    status, body = answer(http.client.HTTPConnection(address, port, timeout=30))
    assert status == 403 and f"with TLS only: use {about['tlsUrl']}" in json.loads(body)["message"]
    assert answer(http.client.HTTPSConnection(address, port, context=tls(corral), timeout=30))[0] == 200
    status, body = answer(http.client.HTTPConnection(address, about["consolePort"], timeout=30), "/")
    assert status == 403 and f"use https://{NAME}:{about['consolePort']}." in body.decode()
    upgrade = b"GET /v1/data-channel/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    with socket.create_connection((address, port), 30) as terminal:
        terminal.sendall(upgrade)
        assert terminal.makefile("rb").read().startswith(b"HTTP/1.1 403")


def test_connections_continue_after_the_process_was_killed(corral: Corral, port: int) -> None:
    def pids() -> list[int]:
        return [pid for pid, line in command_lines() if b"corral.server.tls\0" in line and str(corral.data).encode() in line]

    [pid] = eventually(pids, "the process for TLS")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pid not in pids(), "its end")
    assert answer(http.client.HTTPSConnection(NAME, port, context=tls(corral), timeout=30))[0] == 200
    assert re.search("the process for TLS ended with exit code -9", corral.log())


def test_silent_handshakes_do_not_keep_out_others(corral: Corral, port: int) -> None:
    with ExitStack() as held:
        for _ in range(1_100):  # more than the process accepts
            silent = held.enter_context(socket.create_connection((NAME, port), 30, ("127.0.0.3", 0)))
            silent.sendall(b"\x16\x03\x01\x02")
        assert answer(http.client.HTTPSConnection(NAME, port, context=tls(corral), timeout=30))[0] == 200
