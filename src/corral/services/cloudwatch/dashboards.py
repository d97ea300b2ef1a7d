"""Dashboards. Corral validates, stores and returns them, but does not draw them."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.operations.pagination import Pagination
from corral.services.cloudwatch.common import dashboard_arn
from corral.services.cloudwatch.errors import DashboardInvalidInputError, DashboardNotFoundError, InvalidParameterValueException
from corral.services.cloudwatch.tags import tag_new
from corral.telemetry import MetricStore
from corral.telemetry.dashboards import Dashboard

PAGES = Pagination(InvalidParameterValueException, None, "NextToken", "NextToken", default=1000)
BODY_MAX_BYTES = 1024 * 1024
WIDGETS_MAX = 500
WIDGET_TYPES = ("metric", "text", "log", "alarm", "custom", "explorer")


def put_dashboard(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, body = params["DashboardName"], params["DashboardBody"]
    errors, warnings = _faults(body)
    if errors:
        raise _invalid(errors)
    if tx.store.dashboards.get(name) is None:
        tag_new(tx, dashboard_arn(caller, name), params)
    tx.store.dashboards.put(Dashboard(name, body, tx.now_s, caller.owner))
    return {"DashboardValidationMessages": _messages(warnings)}


def get_dashboard(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    dashboard = tx.store.dashboards.get(params["DashboardName"])
    if dashboard is None:
        raise _not_found([params["DashboardName"]])
    return {"DashboardArn": dashboard_arn(caller, dashboard.name), "DashboardBody": dashboard.body, "DashboardName": dashboard.name}


def list_dashboards(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix = params.get("DashboardNamePrefix", "")
    page, token = PAGES.page(
        params, lambda after, limit: [(each.name, each) for each in tx.store.dashboards.page(prefix, after, limit)]
    )
    return {
        "DashboardEntries": [
            {
                "DashboardName": each.name,
                "DashboardArn": dashboard_arn(caller, each.name),
                "LastModified": each.modified_s,
                "Size": len(each.body.encode()),
            }
            for each in page
        ],
        **token,
    }


def delete_dashboards(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete the named dashboards that exist, as AWS does. Raise an error if none of them exists."""
    names = dict.fromkeys(params["DashboardNames"])
    existing = [name for name in names if tx.store.dashboards.get(name) is not None]
    if names and not existing:
        raise _not_found(list(names))
    for name in existing:
        tx.store.dashboards.drop(name)
        tx.store.tags.put(dashboard_arn(caller, name), {})
    return {}


def _not_found(names: list[str]) -> Exception:
    if len(names) == 1:
        return DashboardNotFoundError(f"Dashboard {names[0]} does not exist")
    return DashboardNotFoundError(f"The following dashboards do not exist: {', '.join(names)}")


Fault = tuple[str, str]  # (path in the body, message)


def _invalid(faults: list[Fault]) -> Exception:
    message = faults[0][1] if faults[0][0] == "/" else f"The dashboard body is invalid, there are {len(faults)} validation errors"
    return DashboardInvalidInputError(message, dashboardValidationMessages=_messages(faults))


def _messages(faults: list[Fault]) -> list[dict[str, str]]:
    return [{"DataPath": path, "Message": message} for path, message in faults]


def _faults(body: str) -> tuple[list[Fault], list[Fault]]:
    if len(body.encode()) > BODY_MAX_BYTES:
        return [("/", f"The field DashboardBody must not be larger than {BODY_MAX_BYTES} bytes")], []
    try:
        content = read_json(body)
    except ValueError:
        return [("/", "The field DashboardBody must be a valid JSON object")], []
    if not isinstance(content, dict):
        return [("/", "The field DashboardBody must be a valid JSON object")], []
    widgets = content.get("widgets", [])
    if not isinstance(widgets, list):
        return [("/widgets", "Should be an array")], []
    if len(widgets) > WIDGETS_MAX:
        return [("/widgets", f"Should NOT have more than {WIDGETS_MAX} items")], []
    errors: list[Fault] = []
    warnings: list[Fault] = [] if "widgets" in content else [("/", "The dashboard has no widgets")]
    for at, widget in enumerate(widgets):
        errors += _widget_faults(f"/widgets/{at}", widget)
    return errors, warnings


def _widget_faults(path: str, widget: Any) -> list[Fault]:
    if not isinstance(widget, dict):
        return [(path, "Should be an object")]
    found: list[Fault] = []
    kind = widget.get("type")
    if kind is None:
        found.append((path, "Should have required property 'type'"))
    elif kind not in WIDGET_TYPES:
        found.append((f"{path}/type", f"Should match one of {', '.join(WIDGET_TYPES)}"))
    properties = widget.get("properties")
    if not isinstance(properties, dict):
        found.append((path, "Should have required property 'properties'"))
    elif kind == "metric" and not ("metrics" in properties or "annotations" in properties):
        found.append((f"{path}/properties", "Should have required property 'metrics'"))
    elif kind == "text" and "markdown" not in properties:
        found.append((f"{path}/properties", "Should have required property 'markdown'"))
    for member in ("x", "y", "width", "height"):
        value = widget.get(member, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            found.append((f"{path}/{member}", "Should be an integer that is 0 or greater"))
    return found
