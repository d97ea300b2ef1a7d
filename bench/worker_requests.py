"""What a queue worker costs the server: CPU time of GetObject, ReceiveMessage and DeleteMessageBatch, alone and mixed.

    python bench/worker_requests.py [--messages 4000] [--connections 64] [--rounds 3] [--bytes 20000] [--json FILE]

The requests have the headers that boto3 and `corral.worker` send. In the mixture each connection receives ten messages, gets one
object for each of them, and deletes them: twelve requests for ten messages. If the server is the bottleneck, a worker can reach
the rate of fetching alone times the CPU time of one GetObject over the CPU time of one message. That ratio is the last row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import boto3
import machine
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from client import ACCESS_KEY, REGION, SECRET_KEY, Caller, Conversation, converse, replay, signed
from local import Local, corral
from rows import Bench, Row, markdown

BUCKET = "images"
OBJECTS = 64
BATCH = 10
SDK_HEADERS = {
    "User-Agent": "Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux md/arch#x86_64 lang/python#3.12 m/Z,b cfg/retry-mode#legacy",
    "amz-sdk-invocation-id": "6f4b1f52-38a3-4d41-a0d1-3e8cf6d6b0f7",
    "amz-sdk-request": "attempt=1",
    "accept-encoding": "identity",
}
GET, PRESIGNED, PLAIN = "GetObject of boto3", "GetObject, presigned", "GetObject of corral.worker"
RECEIVE, DELETE = "ReceiveMessage of 10", "DeleteMessageBatch of 10"
MESSAGE = "a message: 1 GetObject, 0.1 receives, 0.1 deletes"


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
        request = AWSRequest("GET", f"http://127.0.0.1:{self._local.port}/{BUCKET}/{_key(number)}")
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
        return _raw(request.prepare(), self._local.port)

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
        request = signed(self._local.port, "sqs", operation, params)
        line, _, rest = request.partition(b"\r\n")
        return line + b"\r\n" + "".join(f"{name}: {value}\r\n" for name, value in SDK_HEADERS.items()).encode() + rest

    def worker(self, batches: Iterator[None], receive: bytes) -> Conversation:
        """Receive ten messages, get their objects, delete them; as long as there are batches to take."""
        for _ in batches:
            received = yield receive
            messages = len(json.loads(received)["Messages"])
            for _ in range(messages):
                self._at += 1
                yield self._plain[self._at % OBJECTS]
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
    requests.fill(messages)
    received = timed(RECEIVE, batches, lambda: replay(port, repeat(requests.receive(), batches), connections, keep=True))
    deletes = [requests.delete(body) for body in received.bodies]
    timed(DELETE, batches, lambda: replay(port, iter(deletes), connections))
    requests.fill(messages)
    taken, receive = islice(repeat(None), batches), requests.receive()
    timed(MESSAGE, messages, lambda: converse(port, [requests.worker(taken, receive) for _ in range(connections)]))
    return found


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
    names = (GET, PRESIGNED, PLAIN, RECEIVE, DELETE, MESSAGE)
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
