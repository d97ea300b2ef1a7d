"""Dashboards are stored, listed and returned unchanged."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError

WIDGET = {"type": "text", "x": 0, "y": 0, "width": 6, "height": 3, "properties": {"markdown": "hello"}}
BODY = json.dumps({"widgets": [WIDGET]})


@pytest.fixture
def cloudwatch(client):
    return client("cloudwatch")


def test_put_get_list_delete(cloudwatch, client):
    assert cloudwatch.put_dashboard(DashboardName="train-1", DashboardBody=BODY)["DashboardValidationMessages"] == []
    cloudwatch.put_dashboard(DashboardName="train-2", DashboardBody=BODY)
    got = client("cloudwatch", region="eu-west-1").get_dashboard(DashboardName="train-1")  # they belong to no region
    assert got["DashboardBody"] == BODY and got["DashboardArn"] == "arn:aws:cloudwatch::123456789012:dashboard/train-1"
    changed = json.dumps({"widgets": []})
    cloudwatch.put_dashboard(DashboardName="train-1", DashboardBody=changed)
    listed = cloudwatch.list_dashboards(DashboardNamePrefix="train-")["DashboardEntries"]
    assert [(each["DashboardName"], each["Size"]) for each in listed] == [("train-1", len(changed)), ("train-2", len(BODY))]
    cloudwatch.delete_dashboards(DashboardNames=["train-1", "other", "train-1"])  # AWS deletes as many as possible
    assert [each["DashboardName"] for each in cloudwatch.list_dashboards()["DashboardEntries"]] == ["train-2"]
    with pytest.raises(ClientError, match="Dashboard other does not exist"):
        cloudwatch.delete_dashboards(DashboardNames=["other"])
    cloudwatch.delete_dashboards(DashboardNames=["train-2"])
    assert cloudwatch.list_dashboards(DashboardNamePrefix="train-")["DashboardEntries"] == []
    with pytest.raises(ClientError) as refused:
        cloudwatch.get_dashboard(DashboardName="train-1")
    assert refused.value.response["Error"]["Code"] == "ResourceNotFound"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("{", "/"),
        ("[]", "/"),
        ('{"widgets": 7}', "/widgets"),
        ('{"widgets": [{"properties": {}}]}', "/widgets/0"),
        ('{"widgets": [{"type": "pie", "properties": {}}]}', "/widgets/0/type"),
        ('{"widgets": [{"type": "text", "properties": {}}]}', "/widgets/0/properties"),
        ('{"widgets": [{"type": "metric", "x": -1, "properties": {"metrics": []}}]}', "/widgets/0/x"),
    ],
)
def test_an_invalid_body_is_refused_with_the_path_of_the_fault(cloudwatch, body, path):
    with pytest.raises(cloudwatch.exceptions.DashboardInvalidInputError) as refused:
        cloudwatch.put_dashboard(DashboardName="wrong", DashboardBody=body)
    assert [message["DataPath"] for message in refused.value.response["dashboardValidationMessages"]] == [path]


def test_an_invalid_name_is_refused(cloudwatch):
    with pytest.raises(cloudwatch.exceptions.DashboardInvalidInputError, match="invalid characters"):
        cloudwatch.put_dashboard(DashboardName="two words", DashboardBody=BODY)
