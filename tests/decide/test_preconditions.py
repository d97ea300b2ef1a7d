"""Preconditions of requests: which one fails."""

from __future__ import annotations

import pytest

from corral.decide.objects.preconditions import Conditions, etag_matches, failed_condition

AT_S = 1_000.5  # when the object was modified; headers have whole seconds


@pytest.mark.parametrize(
    ("conditions", "header"),
    [
        (Conditions(), None),
        (Conditions(if_match="e"), None),
        (Conditions(if_match='"e"'), None),
        (Conditions(if_match='"f", W/"e"'), None),
        (Conditions(if_match="*"), None),
        (Conditions(if_match="f"), "If-Match"),
        (Conditions(if_none_match="f"), None),
        (Conditions(if_none_match="e"), "If-None-Match"),
        (Conditions(if_none_match="*"), "If-None-Match"),
        (Conditions(if_modified_since_s=999), None),
        (Conditions(if_modified_since_s=1_000), "If-Modified-Since"),
        (Conditions(if_modified_since_s=2_000), "If-Modified-Since"),
        (Conditions(if_modified_since_s=2_001), None),  # a time in the future
        (Conditions(if_unmodified_since_s=1_000), None),
        (Conditions(if_unmodified_since_s=999), "If-Unmodified-Since"),
        (Conditions(if_match="e", if_unmodified_since_s=999), None),
        (Conditions(if_none_match="f", if_modified_since_s=1_000), None),
        (Conditions(if_none_match="e", if_modified_since_s=999), "If-None-Match"),
        (Conditions(if_match="f", if_none_match="e"), "If-Match"),
        (Conditions(if_match="e", if_none_match="e"), "If-None-Match"),
    ],
)
def test_conditions(conditions, header):
    assert failed_condition(conditions, "e", AT_S, now_s=2_000) == header


def test_the_etag_of_a_multipart_object():
    assert etag_matches('"0123-7"', "0123-7") and not etag_matches('"0123"', "0123-7")
