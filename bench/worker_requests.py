"""What a queue worker costs the server: CPU time of its reads of objects, ReceiveMessage and DeleteMessageBatch, alone and mixed.

    python bench/worker_requests.py [--messages 4000] [--connections 64] [--rounds 3] [--bytes 20000] [--json FILE]

The requests have the headers that boto3 and `corral.worker` send. In the mixture each connection receives ten messages, gets
their objects, and deletes the messages: three requests for ten messages. If the server is the bottleneck, a worker can reach the
rate of fetching alone times the CPU time of one GetObject over the CPU time of one message. That ratio is the last row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import boto3
import machine
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from client import ACCESS_KEY, REGION, SECRET_KEY, Caller, Conversation, converse, replay, signed
from local import Local, corral
from rows import Bench, Row, markdown

from corral.worker.object_reader import OBJECTS_PATH
from corral.worker.signed_http import EMPTY_SHA256, SigningScope, signed_head

BUCKET = "images"
OBJECTS = 64
BATCH = 10
CREDENTIALS = ReadOnlyCredentials(ACCESS_KEY, SECRET_KEY, None)
GET, PRESIGNED, PLAIN = "GetObject of boto3", "GetObject, presigned", "GetObject of corral.worker"
RECEIVE, OBJECTS_OF_TEN, DELETE = "ReceiveMessage of 10", "10 objects with one request", "DeleteMessageBatch of 10"
MESSAGE = "a message: a tenth of these three"


class WorkerRequests:
    """A bucket and a queue, and the requests of a worker."""

    def __init__(self, local: Local, size: int, connections: int) -> None:
        self._local = local
        self._connections = connections
        endpoint = f"http://127.0.0.1:{local.port}"
        self._clients = {
            name: boto3.client(
                name,
                endpoint_url=endpoint,
                region_name=REGION,
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
                config=Config(signature_version="s3v4" if name == "s3" else None),
            )
            for name in ("s3", "sqs")
        }
        call = Caller(local.port)
        self._url = call("sqs", "CreateQueue", QueueName="images")["QueueUrl"]
        call.close()
        s3 = self._clients["s3"]
        s3.create_bucket(Bucket=BUCKET)
        arn = f"arn:aws:sqs:{REGION}:123456789012:images"
        told = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
        policy = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": "*"}]}
        self._clients["sqs"].set_queue_attributes(QueueUrl=self._url, Attributes={"Policy": json.dumps(policy)})
        s3.put_bucket_notification_configuration(Bucket=BUCKET, NotificationConfiguration=told)
        for number in range(OBJECTS):
            s3.put_object(Bucket=BUCKET, Key=_key(number), Body=os.urandom(size))
        self._bodies = self._events()
        self._gets = [self._get(number) for number in range(OBJECTS)]
        self._presigned = [self._presigned_get(number) for number in range(OBJECTS)]
        self._plain = [self._plain_get(number) for number in range(OBJECTS)]
        self._at = 0

    def _events(self) -> list[str]:
        """The bodies of the events of the objects, which are taken from the queue."""
        bodies: list[str] = []
        while True:
            page = self._clients["sqs"].receive_message(QueueUrl=self._url, MaxNumberOfMessages=BATCH).get("Messages", [])
            if not page:
                return [body for body in bodies if "Records" in body]
            for message in page:
                bodies.append(message["Body"])
                self._clients["sqs"].delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])

    def _get(self, number: int) -> bytes:
        """The GetObject request of boto3."""
        found: list[bytes] = []

        def keep(request: Any, **_: Any) -> None:
            found.append(_raw(request, self._local.port))

        events = self._clients["s3"].meta.events
        events.register("before-send.s3.GetObject", keep)
        self._clients["s3"].get_object(Bucket=BUCKET, Key=_key(number))["Body"].read()
        events.unregister("before-send.s3.GetObject", keep)
        return found[0]

    def _presigned_get(self, number: int) -> bytes:
        url = self._clients["s3"].generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": _key(number)})
        return _raw(AWSRequest("GET", url).prepare(), self._local.port)

    def _plain_get(self, number: int) -> bytes:
        """The GET request of `corral.worker`."""
        headers = {"host": f"127.0.0.1:{self._local.port}", "x-amz-content-sha256": EMPTY_SHA256}
        return signed_head("GET", f"/{BUCKET}/{_key(number)}", headers, EMPTY_SHA256, _scope("s3"), CREDENTIALS)

    def objects(self) -> bytes:
        """The request of `corral.worker` for the next ten objects."""
        names = [[BUCKET, _key((self._at + each) % OBJECTS)] for each in range(BATCH)]
        self._at += BATCH
        return self._post(OBJECTS_PATH, "corral", {"content-type": "application/json"}, {"objects": names})

    def fill(self, count: int) -> None:
        requests = []
        for at in range(0, count, BATCH):
            entries = [{"Id": str(each), "MessageBody": self._bodies[(at + each) % len(self._bodies)]} for each in range(BATCH)]
            requests.append(signed(self._local.port, "sqs", "SendMessageBatch", {"QueueUrl": self._url, "Entries": entries}))
        replay(self._local.port, iter(requests), self._connections)

    def gets(self, kind: str, count: int) -> Iterator[bytes]:
        found = {GET: self._gets, PRESIGNED: self._presigned, PLAIN: self._plain}[kind]
        return (found[number % OBJECTS] for number in range(count))

    def receive(self) -> bytes:
        """The ReceiveMessage request of `corral.worker`."""
        params = {
            "QueueUrl": self._url,
            "MaxNumberOfMessages": BATCH,
            "VisibilityTimeout": 3600,
            "WaitTimeSeconds": 3,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "MessageGroupId"],
            "MessageAttributeNames": ["All"],
        }
        return self._sqs("ReceiveMessage", params)

    def delete(self, received: bytes) -> bytes:
        messages = json.loads(received)["Messages"]
        entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(messages)]
        return self._sqs("DeleteMessageBatch", {"QueueUrl": self._url, "Entries": entries})

    def _sqs(self, operation: str, params: dict[str, Any]) -> bytes:
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{operation}"}
        return self._post("/", "sqs", headers, params)

    def _post(self, path: str, service: str, headers: dict[str, str], document: dict[str, Any]) -> bytes:
        body = json.dumps(document).encode()
        headers["host"], length = f"127.0.0.1:{self._local.port}", f"content-length: {len(body)}\r\n"
        return signed_head("POST", path, headers, sha256(body).hexdigest(), _scope(service), CREDENTIALS, length) + body

    def worker(self, batches: Iterator[None], receive: bytes) -> Conversation:
        """Receive ten messages, get their objects, delete them; as long as there are batches to take."""
        for _ in batches:
            received = yield receive
            yield self.objects()
            yield self.delete(received)


def measure(local: Local, requests: WorkerRequests, messages: int, connections: int) -> dict[str, float]:
    """One round: µs of the server's CPU per request, and per message in the mixture."""
    port, batches = local.port, messages // BATCH
    found: dict[str, float] = {}

    def timed(name: str, units: int, run: Callable[[], Any]) -> Any:
        before = machine.cpu_s(local.pids["server"])
        outcome = run()
        found[name] = (machine.cpu_s(local.pids["server"]) - before) / units * 1e6
        found[f"{name}, per s"] = units / outcome.seconds
        return outcome

    for kind in (GET, PRESIGNED, PLAIN):
        timed(kind, messages, lambda kind=kind: replay(port, requests.gets(kind, messages), connections))  # type: ignore[misc]
    several = [requests.objects() for _ in range(batches)]
    timed(OBJECTS_OF_TEN, batches, lambda: replay(port, iter(several), connections))
    requests.fill(messages)
    received = timed(RECEIVE, batches, lambda: replay(port, repeat(requests.receive(), batches), connections, keep=True))
    deletes = [requests.delete(body) for body in received.bodies]
    timed(DELETE, batches, lambda: replay(port, iter(deletes), connections))
    requests.fill(messages)
    taken, receive = islice(repeat(None), batches), requests.receive()
    timed(MESSAGE, messages, lambda: converse(port, [requests.worker(taken, receive) for _ in range(connections)]))
    return found


def _scope(service: str) -> SigningScope:
    return SigningScope(REGION, service, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))


def _key(number: int) -> str:
    return f"image-{number:06}.jpg"


def _raw(request: Any, port: int) -> bytes:
    """A prepared request of botocore as bytes."""
    path = request.url.partition(f"127.0.0.1:{port}")[2]
    headers = {"Host": f"127.0.0.1:{port}", "Accept-Encoding": "identity"}
    headers |= {name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{request.method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def rows(found: list[dict[str, float]]) -> list[Row]:
    median = {name: statistics.median(each[name] for each in found) for name in found[0]}
    names = (GET, PRESIGNED, PLAIN, RECEIVE, OBJECTS_OF_TEN, DELETE, MESSAGE)
    table = [
        Row(f"server CPU of {name}", median[name], "µs", note=f"{median[f'{name}, per s']:,.0f}/s with this client")
        for name in names
    ]
    return [*table, Row("GetObject of boto3 as a share of a message", median[GET] / median[MESSAGE], "", budget=0.8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=20_000, help="size of an object")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(Path(tempfile.mkdtemp(prefix="corral-bench-", dir=machine.real_disk())))
    try:
        with corral(bench, "worker", "none") as local:
            requests = WorkerRequests(local, options.bytes, options.connections)
            found = [measure(local, requests, options.messages, options.connections) for _ in range(options.rounds)]
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    print(markdown(rows(found)))
    if options.json is not None:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
