"""Pagination: the same code splits the lists of every service, with the service's own member names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import ApiError, api_error
from corral.operations.pagination import Pagination, among, names, token_of

Invalid = api_error("Invalid")
OutOfRange = api_error("OutOfRange")

ECS = Pagination(Invalid)
IAM = Pagination(Invalid, limit="MaxItems", token="Marker", next_token="Marker", truncated="IsTruncated")
S3 = Pagination(
    Invalid, limit=None, token="ContinuationToken", next_token="NextContinuationToken", truncated="IsTruncated", default=2
)
SQS = Pagination(Invalid, limit="MaxResults", token="NextToken", next_token="NextToken", only_with_limit=True, default=3)
EC2 = Pagination(Invalid, limit="MaxResults", token="NextToken", next_token="NextToken", default=None, smallest=5)


@given(keys=st.sets(st.text(max_size=4)), size=st.integers(1, 5))
def test_pages_join_to_the_whole_list(keys: set[str], size: int):
    params: dict[str, Any] = {"maxResults": size}
    joined = list[str]()
    while True:
        items, more = ECS.page(params, among({key: key for key in keys if key}))
        joined += items
        assert len(items) <= size
        if not more:
            break
        params["nextToken"] = more["nextToken"]
    assert joined == sorted(key for key in keys if key)


def test_members_of_a_service():
    three = among({"a": 1, "b": 2, "c": 3})
    assert IAM.page({"MaxItems": 2}, three) == ([1, 2], {"IsTruncated": True, "Marker": token_of("b")})
    assert IAM.page({"MaxItems": 2, "Marker": token_of("b")}, three) == ([3], {"IsTruncated": False})
    assert S3.page({}, three) == ([1, 2], {"IsTruncated": True, "NextContinuationToken": token_of("b")})


def test_a_service_that_pages_only_on_request():
    four = names(lambda after, limit: [name for name in "abcd" if name > after][:limit])
    assert SQS.page({}, four) == (["a", "b", "c"], {})
    assert SQS.page({"MaxResults": 3}, four) == (["a", "b", "c"], {"NextToken": token_of("c")})


def test_a_service_without_a_default_limit():
    many = among({f"{at:04d}": at for at in range(1500)})
    assert EC2.page({}, many) == (list(range(1500)), {})
    assert EC2.page({"MaxResults": 5}, many)[0] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_range(limit: int):
    with pytest.raises(ApiError) as refused:
        ECS.page({"maxResults": limit}, among({}))
    assert refused.value.message == "maxResults must be between 1 and 1000."
    own = Pagination(Invalid, invalid_limit=lambda member, given, low, high: OutOfRange(f"{member} {given} {low} {high}"))
    with pytest.raises(OutOfRange) as refused:
        own.limit_of({"maxResults": limit})
    assert refused.value.message == f"maxResults {limit} 1 1000"


@pytest.mark.parametrize("token", ["not one of ours", "é", "////"])
def test_a_token_that_no_response_had(token: str):
    with pytest.raises(Invalid) as refused:
        IAM.after({"Marker": token})
    assert refused.value.message == "Marker is not valid: pass the Marker of the previous response unchanged."


def test_a_position_that_is_a_number():
    assert ECS.position({"nextToken": token_of("12")}, int) == 12
    with pytest.raises(Invalid):
        ECS.position({"nextToken": token_of("twelve")}, int)
