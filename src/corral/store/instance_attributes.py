"""The attributes of container instances that Corral itself sets, for placement constraints."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any

import msgspec

from corral.model.agent_protocol import HostOptions
from corral.model.instance import ARCHITECTURE

HOSTS_KEPT = 128
_OPTIONS = msgspec.json.Decoder(HostOptions)


def built_in_attributes(instance_type: str, host_name: str, models: Set[str], *, is_simulated: bool) -> dict[str, str]:
    """The attributes of every container instance that do not depend on a region."""
    return {
        "ecs.instance-type": instance_type,
        "ecs.os-type": "linux",
        "ecs.os-family": "LINUX",
        "corral.host-name": host_name,
        "corral.gpu-model": ", ".join(sorted(models)),
        "corral.gpus-simulated": "true" if is_simulated else "false",
    }


def launch_attributes(details: Mapping[str, Any]) -> dict[str, str]:
    """The attributes that are in `Instance.details`. A host's own instance has only the architecture, the others have a launch."""
    found = {
        "ecs.availability-zone": details.get("Placement", {}).get("AvailabilityZone"),
        "ecs.ami-id": details.get("ImageId"),
        "ecs.subnet-id": details.get("SubnetId"),
        "ecs.vpc-id": details.get("VpcId"),
        ARCHITECTURE: details.get("Architecture"),
    }
    return {name: value for name, value in found.items() if value}


@lru_cache(maxsize=HOSTS_KEPT)  # each change of an instance derives its slot, and that of its host, again
def host_options(text: str) -> HostOptions:
    return _OPTIONS.decode(text)


@lru_cache(maxsize=HOSTS_KEPT)
def host_attributes(of_host: HostOptions) -> Mapping[str, str]:
    """The address, the rack and the labels of a host. All instances of the host have them."""
    known = {"corral.host-address": of_host.address, "corral.rack": of_host.rack}
    labels = dict(label.split("=", 1) for label in of_host.labels.split(",") if "=" in label)
    return {**{name: value for name, value in known.items() if value}, **labels}
