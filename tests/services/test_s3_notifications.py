"""Notifications: which ones match an event, and which ones S3 refuses. The examples are those of its documentation."""

from __future__ import annotations

import pytest

from corral.services.s3.notifications import Notification, ambiguous, matching

CREATED, PUT, DELETED = "s3:ObjectCreated:*", "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"


def notification(*events: str, prefix: str = "", suffix: str = "") -> Notification:
    return Notification("one", "arn:aws:sqs:us-east-1:123456789012:q", events, prefix, suffix)


@pytest.mark.parametrize(
    ("one", "event", "key", "is_matched"),
    [
        (notification(CREATED), PUT, "a", True),
        (notification(CREATED), "s3:ObjectCreated:CompleteMultipartUpload", "a", True),
        (notification(CREATED), DELETED, "a", False),
        (notification(PUT), PUT, "a", True),
        (notification(PUT), "s3:ObjectCreated:CompleteMultipartUpload", "a", False),
        (notification(PUT, DELETED), DELETED, "a", True),
        (notification(PUT, prefix="images/", suffix=".jpg"), PUT, "images/a.jpg", True),
        (notification(PUT, prefix="images/", suffix=".jpg"), PUT, "images/a.png", False),
        (notification(PUT, prefix="images/", suffix=".jpg"), PUT, "pictures/a.jpg", False),
        (notification(PUT, prefix="aba", suffix="bab"), PUT, "abab", True),  # prefix and suffix may overlap within the key
    ],
)
def test_matching_notifications(one: Notification, event: str, key: str, is_matched: bool) -> None:
    assert matching([one], event, key) == ([one] if is_matched else [])


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (notification(CREATED), notification(CREATED), True),
        (notification(CREATED), notification(PUT), True),
        (notification(PUT), notification(DELETED), False),
        (notification(PUT), notification("s3:ObjectCreated:Copy"), False),
        (notification(CREATED, prefix="images/"), notification(CREATED, prefix="logs/"), False),
        (notification(CREATED, prefix="images/"), notification(CREATED, prefix="images/thumbs/"), True),
        (notification(CREATED, prefix="images"), notification(CREATED), True),
        (notification(CREATED, suffix=".jpg"), notification(CREATED, suffix=".png"), False),
        (notification(CREATED, suffix="jpg"), notification(CREATED, suffix="pg"), True),
        (notification(CREATED, prefix="images", suffix=".jpg"), notification(CREATED, prefix="images", suffix=".png"), False),
        (notification(CREATED, prefix="images", suffix=".jpg"), notification(DELETED, prefix="images", suffix=".jpg"), False),
        (notification(CREATED, prefix="images"), notification(CREATED, suffix=".jpg"), True),
        (notification(CREATED, prefix="a/"), notification(CREATED, prefix="b/", suffix=".jpg"), False),
    ],
)
def test_ambiguous_notifications(one: Notification, other: Notification, refused: bool) -> None:
    assert ambiguous([one, other]) is refused
    assert ambiguous([other, one]) is refused
