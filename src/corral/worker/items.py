"""The items that `predict` receives. An item is one SQS message with the S3 objects that the message names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

CREATED = ("ObjectCreated", "ObjectRestore:Completed", "Object Created", "Object Restore Completed")


@dataclass(slots=True)
class S3Object:
    """An object that an S3 event names. `data` has the bytes of the object. `data` is None before the fetch and after `decode`."""

    bucket: str
    key: str
    event: str = ""
    size: int = 0
    etag: str = ""
    version_id: str | None = None
    data: bytes | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def exists(self) -> bool:
        """Whether the event says that the object was created or restored. Other events, for example a removal, have no data."""
        return self.event.startswith(CREATED)


@dataclass(slots=True, eq=False)
class Item:
    """One message of the queue."""

    message_id: str
    body: str = field(repr=False)
    attributes: dict[str, Any] = field(default_factory=dict, repr=False)
    group: str | None = None  # MessageGroupId
    receive_count: int = 1
    objects: list[S3Object] = field(default_factory=list)
    data: Any = field(default=None, repr=False)  # what `decode` returned
    result: Any = field(default=None, repr=False)
    failure: str | None = None
    # Only the worker uses these: the number of the feeder (`feeder.py`) that holds the message, and the numbers that this feeder
    # gave to the message and to the request that received it.
    feeder: int = field(default=0, repr=False)
    number: int = field(default=0, repr=False)
    receive: int = field(default=0, repr=False)

    def fail(self, reason: str) -> None:
        """Let this item fail: the worker returns its message to the queue. Other items of the batch are not affected."""
        self.failure = str(reason) or "no reason given"

    def json(self) -> Any:
        return json.loads(self.body)


class Batch(list[Item]):
    """A list of items. `prepared` is the return value of the function `prepare` for this list."""

    prepared: Any = None


def item_of(message: dict[str, Any], *, feeder: int, number: int, receive: int) -> Item | None:
    """Convert a message of ReceiveMessage to an item. Return None for S3's test event."""
    body, system = message["Body"], message.get("Attributes", {})
    objects = objects_of(body)
    if objects is None:
        return None
    return Item(
        message_id=message["MessageId"],
        body=body,
        attributes={name: _plain(value) for name, value in message.get("MessageAttributes", {}).items()},
        group=system.get("MessageGroupId"),
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        objects=objects,
        feeder=feeder,
        number=number,
        receive=receive,
    )


def objects_of(body: str) -> list[S3Object] | None:
    """Return the objects in an S3 event from S3, SNS or EventBridge. Return None for S3's test event."""
    event = _parsed(body)
    if event.get("Type") == "Notification" and isinstance(event.get("Message"), str):
        event = _parsed(event["Message"])
    if event.get("Event") == "s3:TestEvent":
        return None
    if event.get("source") == "aws.s3" and _is_s3(event.get("detail")):
        detail = event["detail"]
        return [_object(detail, detail["object"]["key"], str(event.get("detail-type", "")))]
    records = event.get("Records")
    if not isinstance(records, list):
        return []
    return [
        _object(record["s3"], unquote_plus(record["s3"]["object"]["key"]), str(record.get("eventName", "")).removeprefix("s3:"))
        for record in records
        if isinstance(record, dict) and _is_s3(record.get("s3"))
    ]


def _is_s3(part: Any) -> bool:
    """Whether a part of an event has the members of an S3 event. Messages of other programs can also have `Records` or `detail`."""
    if not (isinstance(part, dict) and isinstance(part.get("bucket"), dict) and isinstance(part.get("object"), dict)):
        return False
    return isinstance(part["bucket"].get("name"), str) and isinstance(part["object"].get("key"), str)


def _object(part: dict[str, Any], key: str, event: str) -> S3Object:
    about = part["object"]
    size = about.get("size")
    return S3Object(
        bucket=part["bucket"]["name"],
        key=key,
        event=event,
        size=size if isinstance(size, int) and size > 0 else 0,
        etag=str(about.get("eTag", about.get("etag", ""))),
        version_id=about.get("versionId", about.get("version-id")),
    )


def _parsed(text: str) -> dict[str, Any]:
    """Return the JSON object in a text, or an empty dict if the text is something else."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(attribute: dict[str, Any]) -> Any:
    return attribute["BinaryValue"] if "BinaryValue" in attribute else attribute.get("StringValue")
