"""Lifecycle rules on a virtual clock: what expires, when, and at what cost."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import COMMANDS_S, Core
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.decide.objects.expiry import DAY_S, evaluate_key, midnight_after
from corral.model.blob import MD5, StoredBlob
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.reconcile.object_expiry import REMOVALS_MAX, VERSIONS_MAX
from corral.services.s3 import handlers as s3
from corral.services.s3 import lifecycle
from corral.services.sqs import handlers as sqs
from corral.store import Store
from examples import examples

NOON = 20_000 * DAY_S + DAY_S / 2
BUCKET = "expiring"
CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))


class World:
    """A core in memory with one bucket."""

    def __init__(self, *, versions: bool = False) -> None:
        self.clock = VirtualClock(NOON)
        self.store = Store(None)
        self.core = Core(self.store, settings=Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE)
        self.core.timer = lambda: self.store.connection.total_changes * 2 * COMMANDS_S / REMOVALS_MAX
        self.ask("CreateBucket")
        if versions:
            self.ask("PutBucketVersioning", VersioningConfiguration={"Status": "Enabled"})
        bucket = self.store.buckets.get(BUCKET)
        assert bucket is not None
        self.bucket_id = bucket.id

    def ask(self, operation: str, service: Any = s3, **params: Any) -> Any:
        params = {"Bucket": BUCKET, **params} if service is s3 else params

        def handler(tx: Tx[Store]) -> Any:
            admit = s3.ADMIT.get(operation) if service is s3 else None
            admission = admit(tx, params, CALLER) if admit is not None else None
            return service.HANDLERS[operation](tx, params | dict(admission.params if admission is not None else {}), CALLER)

        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults
        ((_, answer),) = outbox.answers
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def put(self, key: str, size: int = 1, **params: Any) -> Any:
        arrived = StoredBlob(f"{self.store.objects.next_number():032x}", size, {MD5: b"m" * 16, "CRC64NVME": b"c" * 8})
        return self.ask("PutObject", Key=key, Body=arrived, ContentLength=size, **params)

    def rules(self, *rules: dict[str, Any]) -> None:
        given = [{"Status": "Enabled", "Filter": {"Prefix": ""}, "ID": str(at), **rule} for at, rule in enumerate(rules)]
        self.ask("PutBucketLifecycleConfiguration", LifecycleConfiguration={"Rules": given})

    def until(self, at_s: float) -> int:
        """Advance the clock and run everything that is due; the number of transactions."""
        batches = 0
        while True:
            due_s = self.core.next_due_s()
            if due_s is None or due_s > at_s + 0.5:
                break
            self.clock.advance(max(0.0, due_s - self.clock.now_s()))
            outbox = self.core.transact([])
            assert not outbox.faults, outbox.faults
            batches += 1
        self.clock.advance(max(0.0, at_s - self.clock.now_s()))
        return batches

    def listed(self) -> list[str]:
        return [each["Key"] for each in self.ask("ListObjectsV2").get("Contents", [])]

    def versions(self) -> list[str]:
        """`v` or `m` (a marker) for each version, newest first."""
        found = self.ask("ListObjectVersions")
        kinds = [(each["LastModified"], each["VersionId"], "v") for each in found.get("Versions", [])]
        kinds += [(each["LastModified"], each["VersionId"], "m") for each in found.get("DeleteMarkers", [])]
        return [kind for *_, kind in sorted(kinds, reverse=True)]


def day(number: float) -> float:
    """The midnight this number of days after the first one."""
    return midnight_after(NOON) + number * DAY_S


def test_objects_expire_at_midnight() -> None:
    world = World()
    world.put("old")
    world.rules({"Expiration": {"Days": 1}})
    world.until(day(0) + 10)
    world.put("new")
    world.until(day(1) - 1)
    assert world.listed() == ["new", "old"]
    world.until(day(1))
    assert world.listed() == ["new"]
    world.until(day(2))
    assert world.listed() == []
    assert world.store.expiries.next_s() is None


def test_an_overwritten_object_gets_a_new_expiry() -> None:
    world = World()
    world.rules({"Expiration": {"Days": 1}})
    world.put("a")
    world.until(day(0) + 1)
    world.put("a")
    world.until(day(1))
    assert world.listed() == ["a"]
    world.until(day(2))
    assert world.listed() == []


def test_filters_and_tags_that_change() -> None:
    world = World()
    tagged = {"Filter": {"And": {"Prefix": "logs/", "Tags": [{"Key": "keep", "Value": "no"}], "ObjectSizeGreaterThan": 5}}}
    world.rules({**tagged, "Expiration": {"Days": 1}})
    world.put("logs/a", 9, Tagging="keep=no")
    world.put("logs/small", 5, Tagging="keep=no")
    world.put("logs/untagged", 9)
    world.put("other", 9, Tagging="keep=no")
    world.until(day(3))
    assert world.listed() == ["logs/small", "logs/untagged", "other"]
    world.ask("PutObjectTagging", Key="logs/untagged", Tagging={"TagSet": [{"Key": "keep", "Value": "no"}]})
    world.until(day(4))
    assert world.listed() == ["logs/small", "other"]


def test_a_date() -> None:
    world = World()
    world.put("a")
    world.rules({"Expiration": {"Date": day(2)}})
    world.until(day(2) - 1)
    assert world.listed() == ["a"]
    world.until(day(2))
    assert world.listed() == []
    world.put("late")
    world.until(day(3) - 1)
    assert world.listed() == ["late"]
    world.until(day(3))
    assert world.listed() == []


def test_disabled_deleted_and_changed_rules() -> None:
    world = World()
    world.put("a")
    world.rules({"Expiration": {"Days": 1}, "Status": "Disabled"})
    world.until(day(2))
    assert world.listed() == ["a"]
    world.rules({"Expiration": {"Days": 9}})
    world.until(day(3))
    world.ask("DeleteBucketLifecycle")
    world.until(day(20))
    assert world.listed() == ["a"]
    assert world.store.expiries.next_s() is None
    world.rules({"Expiration": {"Days": 9}})
    world.until(day(20) + 1)
    assert world.listed() == []


def test_objects_expire_at_the_date_in_the_response() -> None:
    world = World()
    world.rules({"ID": "a rule/1", "Expiration": {"Days": 1}})
    said = 'expiry-date="Sun, 06 Oct 2024 00:00:00 GMT", rule-id="a%20rule/1"'
    assert world.put("a")["Expiration"] == said
    assert world.ask("HeadObject", Key="a")["Expiration"] == said
    assert world.ask("GetObject", Key="a")["Expiration"] == said
    assert day(1) == 1_728_172_800  # the date above


def test_versions() -> None:
    world = World(versions=True)
    world.rules({"Expiration": {"Days": 1}, "NoncurrentVersionExpiration": {"NoncurrentDays": 2}})
    world.put("a")
    world.until(day(1) - 1)
    assert world.versions() == ["v"]
    world.until(day(1))
    assert world.versions() == ["m", "v"]
    assert world.listed() == []
    world.until(day(4) - 1)
    assert world.versions() == ["m", "v"]
    world.until(day(4))  # the hidden version is gone, and the marker is older than a day and hides nothing
    assert world.versions() == []


def test_newer_noncurrent_versions_are_kept() -> None:
    world = World(versions=True)
    world.rules({"NoncurrentVersionExpiration": {"NoncurrentDays": 1, "NewerNoncurrentVersions": 2}})
    for _ in range(5):
        world.put("a")
    world.until(day(5))
    assert world.versions() == ["v"] * 3
    world.put("a")  # now one version has two newer noncurrent ones
    world.until(day(6))
    assert world.versions() == ["v"] * 3


def test_delete_markers_without_versions() -> None:
    world = World(versions=True)
    world.rules({"Expiration": {"ExpiredObjectDeleteMarker": True}})
    made = world.put("a")["VersionId"]
    world.ask("DeleteObject", Key="a")
    world.until(day(5))
    assert world.versions() == ["m", "v"]
    world.ask("DeleteObject", Key="a", VersionId=made)
    world.until(day(6))
    assert world.versions() == []
    assert world.store.expiries.next_s() is None


def test_a_key_with_very_many_versions() -> None:
    world = World(versions=True)
    for _ in range(3 * VERSIONS_MAX):
        world.put("a")
    world.rules({"NoncurrentVersionExpiration": {"NoncurrentDays": 1, "NewerNoncurrentVersions": 5}})
    assert world.until(day(1)) > 2  # several transactions
    assert len(world.versions()) == 6


def test_unfinished_uploads_are_aborted() -> None:
    world = World()
    old = world.ask("CreateMultipartUpload", Key="in/a")
    world.ask("CreateMultipartUpload", Key="out/a")
    assert "AbortDate" not in old
    world.rules({"Filter": {"Prefix": "in/"}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}})
    new = world.ask("CreateMultipartUpload", Key="in/b")
    assert (new["AbortDate"], new["AbortRuleId"]) == (day(2), "0")
    assert world.ask("ListParts", Key="in/b", UploadId=new["UploadId"])["AbortDate"] == day(2)
    world.until(day(2) - 1)
    assert len(world.ask("ListMultipartUploads")["Uploads"]) == 3
    world.until(day(2))
    assert [each["Key"] for each in world.ask("ListMultipartUploads")["Uploads"]] == ["out/a"]
    assert world.store.expiries.next_s() is None


def test_a_completed_upload_is_not_aborted() -> None:
    world = World()
    world.rules({"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}})
    upload = world.ask("CreateMultipartUpload", Key="a")["UploadId"]
    arrived = StoredBlob("f" * 32, 3, {MD5: b"m" * 16, "CRC64NVME": b"c" * 8})
    part = world.ask("UploadPart", Key="a", UploadId=upload, PartNumber=1, Body=arrived, ContentLength=3)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    world.ask("CompleteMultipartUpload", Key="a", UploadId=upload, MultipartUpload=parts)
    assert world.store.expiries.next_s() is None
    world.until(day(5))
    assert world.listed() == ["a"]


def test_expiry_sends_notifications() -> None:
    world = World()
    statement = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*"}
    attributes = {"Policy": json.dumps({"Statement": statement}), "MessageRetentionPeriod": "1209600"}
    world.ask("CreateQueue", sqs, QueueName="q", Attributes=attributes)
    queue = {
        "Id": "x",
        "QueueArn": "arn:aws:sqs:us-east-1:123456789012:q",
        "Events": ["s3:LifecycleExpiration:*", "s3:ObjectRemoved:*"],
    }
    world.ask("PutBucketNotificationConfiguration", NotificationConfiguration={"QueueConfigurations": [queue]})
    world.rules({"Expiration": {"Days": 1}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}})
    world.put("a")
    world.until(day(1))
    world.ask("PutBucketVersioning", VersioningConfiguration={"Status": "Enabled"})
    world.put("b")
    world.until(day(10))
    found = []
    url = "http://localhost/123456789012/q"
    while messages := world.ask("ReceiveMessage", sqs, QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(message["Body"]) for message in messages]
    records = [record for message in found for record in message.get("Records", ())]
    events = sorted((record["eventName"], record["s3"]["object"]["key"]) for record in records)
    assert events == [
        ("LifecycleExpiration:Delete", "a"),
        ("LifecycleExpiration:Delete", "b"),  # the version
        ("LifecycleExpiration:Delete", "b"),  # and its marker
        ("LifecycleExpiration:DeleteMarkerCreated", "b"),
    ]
    assert {record["userIdentity"]["principalId"] for record in records} == {"s3.amazonaws.com"}


def test_many_objects_expire_in_many_small_transactions() -> None:
    world = World()
    for number in range(10 * REMOVALS_MAX):
        world.put(f"{number:04d}")
    world.rules({"Expiration": {"Days": 1}})
    world.until(NOON + 60)
    assert len(world.listed()) == 10 * REMOVALS_MAX
    assert world.until(day(1)) >= 10
    assert world.listed() == []


@pytest.mark.parametrize("versions", [False, True])
def test_the_cost_depends_on_what_expires(versions: bool) -> None:
    def statements(others: int) -> int:
        world = World(versions=versions)
        world.rules(
            {"Filter": {"Prefix": "old/"}, "Expiration": {"Days": 1}}, {"Filter": {"Prefix": "new/"}, "Expiration": {"Days": 99}}
        )
        for number in range(others):
            world.put(f"new/{number}")
            world.put(f"kept/{number}")
        for number in range(10):
            world.put(f"old/{number}")
        world.until(day(1) - 1)
        count = 0

        def counted(_: str) -> None:
            nonlocal count
            count += 1

        world.store.connection.set_trace_callback(counted)
        world.until(day(1))
        world.store.connection.set_trace_callback(None)
        assert len(world.listed()) == 2 * others
        return count

    assert statements(300) == statements(3)


# Compare with an evaluation of every key at every midnight


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from(["", "t=1"])),
        st.tuples(st.just("delete"), st.sampled_from("abc")),
        st.tuples(st.just("delete version"), st.sampled_from("abc"), st.integers(0, 3)),
        st.tuples(st.just("tag"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.just("days"), st.integers(1, 3)),
        st.tuples(st.just("versioning"), st.sampled_from(["Enabled", "Suspended"])),
        st.tuples(st.just("rules"), st.integers(0, 5)),
    ),
    max_size=25,
)
RULES: list[list[dict[str, Any]]] = [
    [{"Expiration": {"Days": 1}}],
    [{"Expiration": {"Days": 2}, "Filter": {"Tag": {"Key": "t", "Value": "1"}}}],
    [{"NoncurrentVersionExpiration": {"NoncurrentDays": 1, "NewerNoncurrentVersions": 1}}],
    [{"Expiration": {"ExpiredObjectDeleteMarker": True}, "NoncurrentVersionExpiration": {"NoncurrentDays": 2}}],
    [{"Expiration": {"Days": 3}, "Filter": {"Prefix": "a"}}, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}],
    [{"Expiration": {"Date": day(4)}}],
]


class Whole(World):
    """A world that can find the keys that a full evaluation would still expire."""

    def left_undone(self) -> list[str]:
        found = []
        for key in "abc":
            versions = self.store.expiries.oldest_versions(self.bucket_id, key, 1000)[::-1]
            if versions:
                candidates = [lifecycle.candidate(version) for version in versions]
                rules = self.core.transact(
                    [Command(lambda tx: lifecycle.enabled_rules(tx, self.bucket_id), lambda answer: None)]
                ).answers[0][1]
                decision = evaluate_key(rules, key, candidates, self.clock.now_s())
                if decision.expire is not None or decision.drop:
                    found.append(key)
        return found


@settings(max_examples=examples(150), deadline=None)
@example(
    [("days", 3), ("versioning", "Suspended"), ("rules", 5), ("put", "a", ""), ("days", 2)]
)  # a marker created on the rule's date
@given(operations)
def test_nothing_that_is_due_is_missed(steps: list[tuple[Any, ...]]) -> None:
    world = Whole()
    world.rules(*RULES[0])
    for step in steps:
        world.clock.advance(60)
        match step:
            case ("put", key, tags):
                world.put(key, **({"Tagging": tags} if tags else {}))
            case ("delete", key):
                world.ask("DeleteObject", Key=key)
            case ("delete version", key, number):
                versions = world.store.expiries.oldest_versions(world.bucket_id, key, 10)
                if number < len(versions):
                    world.ask("DeleteObject", Key=key, VersionId=versions[number].id)
            case ("tag", key, tagged) if key in world.listed():
                tags = [{"Key": "t", "Value": "1"}] if tagged else []
                world.ask("PutObjectTagging", Key=key, Tagging={"TagSet": tags})
            case ("days", days):
                for _ in range(days):
                    world.until(midnight_after(world.clock.now_s()) + 1)
                    assert world.left_undone() == []
            case ("versioning", status):
                world.ask("PutBucketVersioning", VersioningConfiguration={"Status": status})
            case ("rules", number):
                world.rules(*RULES[number])
                world.until(world.clock.now_s() + 1)
                assert world.left_undone() == []
