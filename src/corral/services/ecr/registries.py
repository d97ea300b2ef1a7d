"""What is said of the registry as a whole, in each region: kept and shown. Nothing is scanned and nothing is replicated."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.services.caller import Caller
from corral.services.ecr.images import as_given, existing
from corral.services.ecr.naming import violated
from corral.services.ecr.policies import check_policy
from corral.store import Store

RegistryPolicyNotFoundException = api_error("RegistryPolicyNotFoundException")
ScanNotFoundException = api_error("ScanNotFoundException")

KIND = "registry"  # stored only
POLICY, SCANNING, REPLICATION, SETTINGS = "policy", "scanning", "replication", "settings"
ACCOUNT_SETTINGS = {  # its values, the one that holds by itself first
    "BASIC_SCAN_TYPE_VERSION": ("AWS_NATIVE", "CLAIR"),
    "REGISTRY_POLICY_SCOPE": ("V2", "V1"),
    "BLOB_MOUNTING": ("ENABLED", "DISABLED"),
}


def describe_registry(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    replication = _said(tx, caller, REPLICATION) or {"rules": []}
    return {"registryId": caller.account, "replicationConfiguration": replication}


def put_replication_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    replication = params["replicationConfiguration"]
    _say(tx, caller, REPLICATION, replication)
    return {"replicationConfiguration": replication}


def put_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    check_policy(params["policyText"], "registry")
    _say(tx, caller, POLICY, {"policyText": params["policyText"]})
    return {"registryId": caller.account, "policyText": params["policyText"]}


def get_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = _said(tx, caller, POLICY)
    if found is None:
        raise _no_policy(caller)
    return {"registryId": caller.account, **found}


def delete_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    reply = get_registry_policy(tx, params, caller)
    tx.store.stored.drop("ecr", KIND, caller.region, POLICY)
    return reply


def get_registry_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    scanning = _said(tx, caller, SCANNING) or {"scanType": "BASIC", "rules": []}
    return {"registryId": caller.account, "scanningConfiguration": scanning}


def put_registry_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    scanning = {"scanType": params.get("scanType", "BASIC"), "rules": params.get("rules", [])}
    _say(tx, caller, SCANNING, scanning)
    return {"registryScanningConfiguration": scanning}


def describe_image_scan_findings(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """There are never any: an image that nobody has scanned must not look clean."""
    repository, _ = existing(tx, params, caller)
    raise ScanNotFoundException(
        f"Image scan does not exist for the image with '{as_given(params['imageId'])}' in the repository with name "
        f"'{repository.name}' in the registry with id '{caller.account}'. Corral does not scan images."
    )


def get_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["name"]
    value = (_said(tx, caller, SETTINGS) or {}).get(name, ACCOUNT_SETTINGS[name][0])
    return {"name": name, "value": value}


def put_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, value = params["name"], params["value"]
    if value not in ACCOUNT_SETTINGS[name]:
        raise violated("value", f"must satisfy enum value set: [{', '.join(ACCOUNT_SETTINGS[name])}]")
    _say(tx, caller, SETTINGS, {**(_said(tx, caller, SETTINGS) or {}), name: value})
    return {"name": name, "value": value}


def _said(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any] | None:
    return tx.store.stored.get("ecr", KIND, caller.region, name)


def _say(tx: Tx[Store], caller: Caller, name: str, document: dict[str, Any]) -> None:
    tx.store.stored.put("ecr", KIND, caller.region, name, document, tx.now_s)


def _no_policy(caller: Caller) -> ApiError:
    return RegistryPolicyNotFoundException(f"Registry policy does not exist in the registry with id '{caller.account}'")
