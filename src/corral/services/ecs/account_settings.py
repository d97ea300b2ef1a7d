"""Account settings of ECS. They are stored per principal. The settings of the root user are the defaults of the account."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.services.ecs.errors import InvalidParameterException
from corral.services.ecs.lookup import PAGES
from corral.store import Store

SWITCH = ("enabled", "disabled")
ON_OFF = ("on", "off")

# Name → (AWS's default value, the allowed values).
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "awsvpcTrunking": ("disabled", SWITCH),
    "containerInsights": ("disabled", (*SWITCH, "enhanced")),
    "containerInstanceLongArnFormat": ("enabled", SWITCH),
    "defaultLogDriverMode": ("non-blocking", ("blocking", "non-blocking")),
    "fargateEventWindows": ("disabled", SWITCH),
    "fargateFIPSMode": ("disabled", SWITCH),
    "fargateTaskRetirementWaitPeriod": ("7", ("0", "7", "14")),
    "guardDutyActivate": ("off", ON_OFF),
    "serviceLongArnFormat": ("enabled", SWITCH),
    "tagResourceAuthorization": ("on", ON_OFF),
    "taskLongArnFormat": ("enabled", SWITCH),
}
AWS_MANAGED = frozenset({"guardDutyActivate"})  # callers can read these settings, but cannot set them


def put_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _put(tx, caller, params, params.get("principalArn", caller.principal.arn))


def put_account_setting_default(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _put(tx, caller, params, _root(caller))


def list_account_settings(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the settings of a principal.

    With `effectiveSettings`, also list the settings that the principal inherits from the account or from AWS.
    """
    principal, only = params.get("principalArn", caller.principal.arn), params.get("name")
    if only is None and "value" in params:
        raise InvalidParameterException("A filter by value needs the name of a setting: specify name and value.")
    settings = {}
    for name in sorted(SETTINGS if only is None else {only}):
        value = _value(tx, caller, name, principal)
        if params.get("effectiveSettings"):
            settings[name] = _effective(tx, caller, name, principal)
        elif value is not None:
            settings[name] = _setting(name, value, principal)
    if "value" in params:
        settings = {name: setting for name, setting in settings.items() if setting["value"] == params["value"]}
    page, token = PAGES.page(params, among(settings))
    return {"settings": page, **token}


def delete_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, principal = params["name"], params.get("principalArn", caller.principal.arn)
    tx.store.stored.drop("ecs", "account-setting", caller.region, _key(name, principal))
    return {"setting": _effective(tx, caller, name, principal) | {"principalArn": principal}}


def effective_value(tx: Tx[Store], caller: Caller, name: str) -> str:
    return str(_effective(tx, caller, name, caller.principal.arn)["value"])


def _put(tx: Tx[Store], caller: Caller, params: dict[str, Any], principal: str) -> dict[str, Any]:
    name, value = params["name"], params["value"]
    if name in AWS_MANAGED:
        raise InvalidParameterException(f"AWS manages the setting {name}: it cannot be changed.")
    if value not in SETTINGS[name][1]:
        raise InvalidParameterException(f"Invalid value '{value}' for the setting {name}: use {' or '.join(SETTINGS[name][1])}.")
    tx.store.stored.put("ecs", "account-setting", caller.region, _key(name, principal), {"value": value}, tx.now_s)
    return {"setting": _setting(name, value, principal)}


def _effective(tx: Tx[Store], caller: Caller, name: str, principal: str) -> dict[str, Any]:
    for owner in (principal, _root(caller)):
        value = _value(tx, caller, name, owner)
        if value is not None:
            return _setting(name, value, owner)
    return _setting(name, SETTINGS[name][0], _root(caller))


def _value(tx: Tx[Store], caller: Caller, name: str, principal: str) -> str | None:
    document = tx.store.stored.get("ecs", "account-setting", caller.region, _key(name, principal))
    return document["value"] if document else None


def _setting(name: str, value: str, principal: str) -> dict[str, Any]:
    return {"name": name, "value": value, "principalArn": principal, "type": "aws_managed" if name in AWS_MANAGED else "user"}


def _key(name: str, principal: str) -> str:
    return f"{name} {principal}"


def _root(caller: Caller) -> str:
    return f"arn:aws:iam::{caller.account}:root"
