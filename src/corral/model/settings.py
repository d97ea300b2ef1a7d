"""The settings of a Corral process that handlers and reconcilers depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.model.instance import DEFAULT_CLUSTER, HOST_TYPE


@dataclass(frozen=True, slots=True)
class Settings:
    account: str = "123456789012"
    runtime: str = "auto"  # --runtime
    cluster: str = DEFAULT_CLUSTER  # --cluster: the cluster that this machine joins, in every region
    instance_type: str = HOST_TYPE  # --instance-type: the type that this machine shows
    endpoint_url: str = "http://127.0.0.1:4566"  # the address of Corral for tasks on this machine
    session_key: bytes = field(default=b"for simulations, which no stranger can reach", repr=False)  # services/sessions.py
    alarm_timing: str = "fast"  # or "aws": alarms wait for the ends of their windows
    secrets_key: bytes = field(default=bytes(32), repr=False)  # services/ssm/encryption.py
