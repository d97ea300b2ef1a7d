"""ListMetrics."""

from __future__ import annotations

import json
from typing import Any

from corral.core import Tx
from corral.model.metric import Metric
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import InvalidParameterValue
from corral.services.pagination import Pagination
from corral.telemetry import MetricStore
from corral.telemetry.metrics import ACTIVE_STEP_S

PAGES = Pagination(InvalidParameterValue, None, "NextToken", "NextToken", default=500)
VISIBLE_S = 14 * 86_400  # a series of which nobody heard for so long is not listed any more
RECENT_S = 3 * 3600


def list_metrics(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    filters = params.get("Dimensions", [])
    recently = params.get("RecentlyActive")
    if params.get("OwningAccount", caller.account) != caller.account:
        return {"Metrics": []}

    def listed(after: str, limit: int) -> list[tuple[str, Metric]]:
        found = tx.store.listed(
            caller.region,
            active_since_s=tx.now_s - (RECENT_S + ACTIVE_STEP_S if recently else VISIBLE_S),
            namespace=params.get("Namespace"),
            name=params.get("MetricName"),
            dimensions=[(each["Name"], each.get("Value")) for each in filters],
            after=PAGES.position(params, lambda token: _metric(caller.region, token)),
            limit=limit,
        )
        return [(json.dumps(metric[1:]), metric) for metric in found]

    page, token = PAGES.page(params, listed)
    return {
        "Metrics": [shown(metric) for metric in page],
        **({"OwningAccounts": [caller.account] * len(page)} if params.get("IncludeLinkedAccounts") else {}),
        **token,
    }


def shown(metric: Metric) -> dict[str, Any]:
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
    }


def _metric(region: str, token: str) -> Metric | None:
    if not token:
        return None
    try:
        namespace, name, dimensions = json.loads(token)
        return Metric(region, str(namespace), str(name), tuple((str(key), str(value)) for key, value in dimensions))
    except TypeError as error:
        raise ValueError(error) from None
