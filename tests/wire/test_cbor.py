"""CBOR: Corral's codec against botocore's, the examples of RFC 8949, and hostile bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from botocore.parsers import create_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.aws import Request, recognise
from corral.aws.cbor import EpochSeconds, cbor_from_value, value_from_cbor
from corral.aws.wire_errors import ParseError
from corral.core.errors import ApiError, api_error
from wire.generate import EXAMPLES
from wire.oracle import sent_by_botocore

CBOR = {"smithy-protocol": "rpc-v2-cbor", "content-type": "application/cbor"}
PATH = "/service/GraniteServiceVersion20100801/operation/"


@pytest.mark.parametrize(
    "data, value",
    [
        ("00", 0),
        ("17", 23),
        ("1818", 24),
        ("1903e8", 1000),
        ("1b000000e8d4a51000", 1000000000000),
        ("1bffffffffffffffff", 18446744073709551615),
        ("3bffffffffffffffff", -18446744073709551616),
        ("20", -1),
        ("3903e7", -1000),
        ("f93c00", 1.0),
        ("f97bff", 65504.0),
        ("fa47c35000", 100000.0),
        ("fb3ff199999999999a", 1.1),
        ("f97c00", math.inf),
        ("fbfff0000000000000", -math.inf),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("f7", None),
        ("40", b""),
        ("4401020304", b"\x01\x02\x03\x04"),
        ("60", ""),
        ("62c3bc", "ü"),
        ("80", []),
        ("8301820203820405", [1, [2, 3], [4, 5]]),
        ("a0", {}),
        ("a26161016162820203", {"a": 1, "b": [2, 3]}),
        ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
        ("7f657374726561646d696e67ff", "streaming"),
        ("9fff", []),
        ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
        ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
        ("bf6346756ef563416d7421ff", {"Fun": True, "Amt": -2}),
        ("c11a514b67b0", EpochSeconds(1363896240)),
        ("c1fb41d452d9ec200000", EpochSeconds(1363896240.5)),
        ("", {}),
    ],
)
def test_known_encodings_are_read(data: str, value: Any) -> None:
    read = value_from_cbor(bytes.fromhex(data))
    assert read == value
    assert read.__class__ is value.__class__


@pytest.mark.parametrize(
    "data",
    [
        "c249010000000000000000",  # a bignum
        "c349010000000000000000",
        "c48221196ab3",  # a decimal fraction
        "c074323031332d30332d32315432303a30343a30305a",  # a date as text
        "d81c00",  # a shared reference
        "c1c100",  # a tag of a tag
        "c16161",
        "c1f5",
        "c1f6",
        "1c", "1d", "1e", "1f", "3f", "df",  # reserved, and numbers without a length
        "f8ff", "f818", "f0", "fc", "ff",  # other simple values, and a break outside of a list
        "a10101",  # a key that is not text
        "a1f601",
        "62c328",  # not UTF-8
        "7f62c3ff",
        "5f6161ff",  # a text among bytes
        "5f5f4101ffff",
        "0000",  # two values
        "18", "19ff", "1b00", "41", "6161" + "61", "81", "a1", "a16161", "9f", "bf", "bf6161", "5f", "5f41", "fb00", "c1", "f9",
        "9b7fffffffffffffff", "bb7fffffffffffffff", "5b7fffffffffffffff", "7b7fffffffffffffff",  # huge lengths
        "bf6161ff",  # a key without its value
    ],
)  # fmt: skip
def test_unsupported_cbor_is_refused(data: str) -> None:
    with pytest.raises(ParseError):
        value_from_cbor(bytes.fromhex(data))


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xa1\x61a", b"\xbf\x61a"])
@pytest.mark.parametrize("depth", [65, 1000, 200_000])
def test_depth_is_bounded(opening: bytes, depth: int) -> None:
    with pytest.raises(ParseError, match="nested"):
        value_from_cbor(opening * depth)
    assert value_from_cbor(b"\x81" * 64 + b"\x00")


SCALARS = st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.text(max_size=30) | st.binary(max_size=300)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40 * EXAMPLES, deadline=None)
@given(value=VALUES)
def test_encoded_values_are_decoded_by_botocore_and_corral(value: Any) -> None:
    data = cbor_from_value(value)
    parser = create_parser("smithy-rpc-v2-cbor")
    theirs = parser.parse_data_item(parser.get_peekable_stream_from_bytes(data))
    assert repr(value_from_cbor(data)) == repr(theirs) == repr(value)


@settings(max_examples=60 * EXAMPLES, deadline=None)
@given(body=st.binary(max_size=60))
def test_arbitrary_bytes(body: bytes) -> None:
    for operation in ("PutMetricData", "DescribeAlarmHistory"):
        call = recognise(Request("POST", PATH + operation, "", CBOR, body))
        try:
            call.params()
        except ApiError as error:
            assert error.status == 400


@pytest.mark.parametrize(
    "value",
    [
        {"StartDate": 1700000000},  # no tag
        {"StartDate": "2026-01-01T00:00:00Z"},
        {"StartDate": EpochSeconds(1e15)},
        {"StartDate": EpochSeconds(math.nan)},
        {"MaxRecords": "1"},
        {"MaxRecords": 1.0},
        {"MaxRecords": True},
        {"MaxRecords": 2**31},
        {"MaxRecords": EpochSeconds(1)},
        {"AlarmName": b"x"},
        {"AlarmName": 1},
        {"AlarmTypes": {}},
        {"AlarmTypes": [1]},
        [],
        1,
        "x",
    ],
)
def test_a_wrong_type_is_a_serialization_exception(value: Any) -> None:
    call = recognise(Request("POST", PATH + "DescribeAlarmHistory", "", CBOR, cbor_from_value(value)))
    with pytest.raises(ApiError) as caught:
        call.params()
    assert caught.value.code == "SerializationException"


def test_a_missing_member_and_what_is_ignored() -> None:
    call = recognise(Request("POST", PATH + "DeleteAlarms", "", CBOR, cbor_from_value({"Later": {"a": [1]}})))
    with pytest.raises(ApiError, match="Value null at 'alarmNames'") as caught:
        call.params()
    assert caught.value.code == "ValidationException"
    body = bytes.fromhex("a2") + cbor_from_value("AlarmNames") + cbor_from_value(["a"]) + cbor_from_value("x") + b"\xf6"
    assert recognise(Request("POST", PATH + "DeleteAlarms", "", CBOR, body)).params() == {"AlarmNames": ["a"]}


def test_errors_carry_both_codes() -> None:
    request = sent_by_botocore("cloudwatch", "smithy-rpc-v2-cbor", "DescribeAlarms", {})
    response = recognise(request).serialize_error(api_error("ResourceNotFoundException")("no <such> thing"), "request-1")
    assert ("smithy-protocol", "rpc-v2-cbor") in response.headers
    assert value_from_cbor(response.body)["__type"] == "ResourceNotFoundException"
    assert dict(response.headers).get("x-amzn-query-error", "").endswith(";Sender")
