"""Requests of CloudTrail."""

from __future__ import annotations

from answers.calls import SAME, Calls


def requests(calls: Calls) -> None:
    name = [{"AttributeKey": "EventName", "AttributeValue": "CreateQueue"}]
    calls.twice("LookupEvents", SAME, LookupAttributes=name)
    calls("LookupEvents", MaxResults=1)
    calls.refused("LookupEvents", "InvalidLookupAttributesException", LookupAttributes=name * 2)
    calls.refused("LookupEvents", "InvalidTimeRangeException", StartTime=2e9, EndTime=1e9)
    calls.refused("LookupEvents", "InvalidMaxResultsException", MaxResults=51)
    calls.refused("LookupEvents", "InvalidNextTokenException", NextToken="nonsense")
    calls.refused("LookupEvents", "UnsupportedOperationException", EventCategory="insight")
