"""Notifications: who is told, and what S3 does not take; the examples are those of its documentation."""

from __future__ import annotations

import pytest

from corral.decide.notifications import Notification, ambiguous, matching

CREATED, PUT, DELETED = "s3:ObjectCreated:*", "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"


def told(*events: str, prefix: str = "", suffix: str = "") -> Notification:
    return Notification("one", "arn:aws:sqs:us-east-1:123456789012:q", events, prefix, suffix)


@pytest.mark.parametrize(
    ("one", "event", "key", "is_told"),
    [
        (told(CREATED), PUT, "a", True),
        (told(CREATED), "s3:ObjectCreated:CompleteMultipartUpload", "a", True),
        (told(CREATED), DELETED, "a", False),
        (told(PUT), PUT, "a", True),
        (told(PUT), "s3:ObjectCreated:CompleteMultipartUpload", "a", False),
        (told(PUT, DELETED), DELETED, "a", True),
        (told(PUT, prefix="images/", suffix=".jpg"), PUT, "images/a.jpg", True),
        (told(PUT, prefix="images/", suffix=".jpg"), PUT, "images/a.png", False),
        (told(PUT, prefix="images/", suffix=".jpg"), PUT, "pictures/a.jpg", False),
        (told(PUT, prefix="aba", suffix="bab"), PUT, "abab", True),  # they may overlap within the key
    ],
)
def test_who_is_told(one: Notification, event: str, key: str, is_told: bool) -> None:
    assert matching([one], event, key) == ([one] if is_told else [])


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (told(CREATED), told(CREATED), True),
        (told(CREATED), told(PUT), True),
        (told(PUT), told(DELETED), False),
        (told(PUT), told("s3:ObjectCreated:Copy"), False),
        (told(CREATED, prefix="images/"), told(CREATED, prefix="logs/"), False),
        (told(CREATED, prefix="images/"), told(CREATED, prefix="images/thumbs/"), True),
        (told(CREATED, prefix="images"), told(CREATED), True),
        (told(CREATED, suffix=".jpg"), told(CREATED, suffix=".png"), False),
        (told(CREATED, suffix="jpg"), told(CREATED, suffix="pg"), True),
        (told(CREATED, prefix="images", suffix=".jpg"), told(CREATED, prefix="images", suffix=".png"), False),
        (told(CREATED, prefix="images", suffix=".jpg"), told(DELETED, prefix="images", suffix=".jpg"), False),
        (told(CREATED, prefix="images"), told(CREATED, suffix=".jpg"), True),
        (told(CREATED, prefix="a/"), told(CREATED, prefix="b/", suffix=".jpg"), False),
    ],
)
def test_what_would_be_ambiguous(one: Notification, other: Notification, refused: bool) -> None:
    assert ambiguous([one, other]) is refused
    assert ambiguous([other, one]) is refused
