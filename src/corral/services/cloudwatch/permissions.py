"""The permissions that operations of CloudWatch need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    alarms = params.get("AlarmNames") or ([params["AlarmName"]] if params.get("AlarmName") else [])
    arns = [f"arn:aws:cloudwatch:{caller.region}:{caller.account}:alarm:{name}" for name in alarms]
    boards = params.get("DashboardNames") or ([params["DashboardName"]] if params.get("DashboardName") else [])
    arns += [f"arn:aws:cloudwatch::{caller.account}:dashboard/{name}" for name in boards]
    arns += [params["ResourceARN"]] if params.get("ResourceARN") else []
    namespace: Context = {"cloudwatch:namespace": (params["Namespace"],)} if params.get("Namespace") else {}
    return on_resources(f"cloudwatch:{operation}", arns, {**request_tags(params), **namespace})
