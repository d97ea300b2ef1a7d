"""Account settings: kept per principal, with the account's default behind them."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.ecs.naming import PAGES, InvalidParameterException
from corral.services.pagination import among
from corral.store import Store

SWITCH = ("enabled", "disabled")
ON_OFF = ("on", "off")

# Name → its value while nobody has set it, and the values it may have.
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
AWS_MANAGED = frozenset({"guardDutyActivate"})  # shown; only AWS sets it


def put_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _put(tx, caller, params, params.get("principalArn", caller.principal))


def put_account_setting_default(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _put(tx, caller, params, _root(caller))


def list_account_settings(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Those set for the principal; with `effectiveSettings`, the ones that hold for it, wherever they come from."""
    principal, only = params.get("principalArn", caller.principal), params.get("name")
    if only is None and "value" in params:
        raise InvalidParameterException("A value can be given only together with the name of a setting.")
    shown = {}
    for name in sorted(SETTINGS if only is None else {only}):
        value = _value(tx, caller, name, principal)
        if params.get("effectiveSettings"):
            shown[name] = _effective(tx, caller, name, principal)
        elif value is not None:
            shown[name] = _shown(name, value, principal)
    if "value" in params:
        shown = {name: setting for name, setting in shown.items() if setting["value"] == params["value"]}
    page, token = PAGES.page(params, among(shown))
    return {"settings": page, **token}


def delete_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, principal = params["name"], params.get("principalArn", caller.principal)
    tx.store.stored.drop("ecs", "account-setting", caller.region, _key(name, principal))
    return {"setting": _effective(tx, caller, name, principal) | {"principalArn": principal}}


def effective_value(tx: Tx[Store], caller: Caller, name: str) -> str:
    """What holds for the caller."""
    return str(_effective(tx, caller, name, caller.principal)["value"])


def _put(tx: Tx[Store], caller: Caller, params: dict[str, Any], principal: str) -> dict[str, Any]:
    name, value = params["name"], params["value"]
    if name in AWS_MANAGED:
        raise InvalidParameterException(f"The setting {name} is managed by AWS and cannot be changed.")
    if value not in SETTINGS[name][1]:
        raise InvalidParameterException(f"Invalid value '{value}' for the setting {name}: use {' or '.join(SETTINGS[name][1])}.")
    tx.store.stored.put("ecs", "account-setting", caller.region, _key(name, principal), {"value": value}, tx.now_s)
    return {"setting": _shown(name, value, principal)}


def _effective(tx: Tx[Store], caller: Caller, name: str, principal: str) -> dict[str, Any]:
    for whose in (principal, _root(caller)):
        value = _value(tx, caller, name, whose)
        if value is not None:
            return _shown(name, value, whose)
    return _shown(name, SETTINGS[name][0], _root(caller))


def _value(tx: Tx[Store], caller: Caller, name: str, principal: str) -> str | None:
    kept = tx.store.stored.get("ecs", "account-setting", caller.region, _key(name, principal))
    return kept["value"] if kept else None


def _shown(name: str, value: str, principal: str) -> dict[str, Any]:
    return {"name": name, "value": value, "principalArn": principal, "type": "aws_managed" if name in AWS_MANAGED else "user"}


def _key(name: str, principal: str) -> str:
    return f"{name} {principal}"


def _root(caller: Caller) -> str:
    return f"arn:aws:iam::{caller.account}:root"
