"""Settings of the registry in each region. Corral only stores and returns them: it does not scan or replicate images."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.image import ACCOUNT_SETTINGS
from corral.services.ecr.errors import RegistryPolicyNotFoundException, ScanNotFoundException
from corral.services.ecr.images import image_id_text, requested_image
from corral.services.ecr.policies import check_policy
from corral.services.ecr.repository_names import violated
from corral.store import Store

KIND = "registry"  # the kind of the stored resource
POLICY, SCANNING, REPLICATION, SETTINGS = "policy", "scanning", "replication", "settings"
DEFAULTS: dict[str, dict[str, Any]] = {SCANNING: {"scanType": "BASIC", "rules": []}, REPLICATION: {"rules": []}}


def describe_registry(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    replication = _setting(tx, caller, REPLICATION) or DEFAULTS[REPLICATION]
    return {"registryId": caller.account, "replicationConfiguration": replication}


def put_replication_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    replication = params["replicationConfiguration"]
    own = {"region": caller.region, "registryId": caller.account}
    if any(destination == own for rule in replication["rules"] for destination in rule["destinations"]):
        raise violated("replicationConfiguration", "Replication destination cannot be the same as the source registry")
    _store(tx, caller, REPLICATION, replication)
    return {"replicationConfiguration": replication}


def put_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    check_policy(params["policyText"], "registry")
    _store(tx, caller, POLICY, {"policyText": params["policyText"]})
    return {"registryId": caller.account, "policyText": params["policyText"]}


def get_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = _setting(tx, caller, POLICY)
    if found is None:
        raise _no_policy(caller)
    return {"registryId": caller.account, **found}


def delete_registry_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    response = get_registry_policy(tx, params, caller)
    tx.store.stored.drop("ecr", KIND, caller.region, POLICY)
    return response


def get_registry_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    scanning = _setting(tx, caller, SCANNING) or DEFAULTS[SCANNING]
    return {"registryId": caller.account, "scanningConfiguration": scanning}


def put_registry_scanning_configuration(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    scanning = {"scanType": params.get("scanType", "BASIC"), "rules": params.get("rules", [])}
    _store(tx, caller, SCANNING, scanning)
    return {"registryScanningConfiguration": scanning}


def describe_image_scan_findings(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Raise ScanNotFoundException. A response without findings would suggest that an image was scanned and has no problems."""
    repository, _ = requested_image(tx, params, caller)
    raise ScanNotFoundException(
        f"Image scan does not exist for the image with '{image_id_text(params['imageId'])}' in the repository with name "
        f"'{repository.name}' in the registry with id '{caller.account}'. Corral does not scan images."
    )


def get_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["name"]
    value = (_setting(tx, caller, SETTINGS) or {}).get(name, ACCOUNT_SETTINGS[name][0])
    return {"name": name, "value": value}


def put_account_setting(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, value = params["name"], params["value"]
    if value not in ACCOUNT_SETTINGS[name]:
        raise violated("value", f"must satisfy enum value set: [{', '.join(ACCOUNT_SETTINGS[name])}]")
    _store(tx, caller, SETTINGS, {**(_setting(tx, caller, SETTINGS) or {}), name: value})
    return {"name": name, "value": value}


def _setting(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any] | None:
    return tx.store.stored.get("ecr", KIND, caller.region, name)


def _store(tx: Tx[Store], caller: Caller, name: str, document: dict[str, Any]) -> None:
    """Store a setting. A setting with its default value has no row."""
    if document == DEFAULTS.get(name):
        tx.store.stored.drop("ecr", KIND, caller.region, name)
    else:
        tx.store.stored.put("ecr", KIND, caller.region, name, document, tx.now_s)


def _no_policy(caller: Caller) -> ApiError:
    return RegistryPolicyNotFoundException(f"Registry policy does not exist in the registry with id '{caller.account}'")
