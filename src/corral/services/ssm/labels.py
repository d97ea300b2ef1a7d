"""Labels: names for versions of a parameter. A label is on one version at a time."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.parameter import Parameter
from corral.services.caller import Caller
from corral.services.ssm.naming import ParameterVersionNotFound, own
from corral.store import Store

ParameterVersionLabelLimitExceeded = api_error("ParameterVersionLabelLimitExceeded")

LABELS_MAX = 10
LABEL = re.compile(r"(?!aws|ssm|[0-9])[a-zA-Z0-9_.\-]{1,100}", re.IGNORECASE)


def label_parameter_version(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    version = _version(tx, caller, params["Name"], params.get("ParameterVersion"))
    valid = [label for label in dict.fromkeys(params["Labels"]) if LABEL.fullmatch(label)]
    labels = tuple(dict.fromkeys((*version.labels, *valid)))
    if len(labels) > LABELS_MAX:
        raise ParameterVersionLabelLimitExceeded(
            f"A parameter version can have maximum {LABELS_MAX} labels. Move one or more labels to another version and try again."
        )
    for label in valid:
        holder = tx.store.parameters.labelled(version.region, version.name, label)
        if holder is not None and holder.version != version.version:
            tx.store.parameters.set_labels(holder, (other for other in holder.labels if other != label))
    tx.store.parameters.set_labels(version, labels)
    return {"InvalidLabels": [label for label in params["Labels"] if label not in valid], "ParameterVersion": version.version}


def unlabel_parameter_version(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    version = _version(tx, caller, params["Name"], params["ParameterVersion"])
    removed = [label for label in params["Labels"] if label in version.labels]
    tx.store.parameters.set_labels(version, (label for label in version.labels if label not in removed))
    return {"RemovedLabels": removed, "InvalidLabels": [label for label in params["Labels"] if label not in removed]}


def _version(tx: Tx[Store], caller: Caller, name: str, number: int | None) -> Parameter:
    latest = own(tx, caller, name)
    if number is None or number == latest.version:
        return latest
    found = tx.store.parameters.version(caller.region, name, number)
    if found is None:
        raise ParameterVersionNotFound(
            f"Systems Manager could not find version {number} of {name}. Verify the version and try again."
        )
    return found
