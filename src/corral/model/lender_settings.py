"""The settings of lenders: the tables [lenders.NAME] of corral.toml. `kind` of a table says which system the lender is."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class LenderSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that all kinds of lenders have.

    Tags of an instance choose the options of its allocation, by the values that `allow` has. `corral:slurm-partition` is the tag of
    the option `partition` of the kind `slurm`.
    """

    options: ClassVar[tuple[str, ...]] = ()  # which options tags can choose

    kind: str = "slurm"
    allow: dict[str, list[str]] = {}  # option → the values that tags may choose
    python: str = "python3"  # on the machines; if it does not have the version of the server, the server sends its wheels
    setup: str = ""  # lines of shell that run before the pilot, such as `module load cuda`
    folder: str = "/tmp"  # on the machines of the lender: a pilot has its files in a new folder below it
    gpus: str = "auto"  # which GPUs the machines have, as for `corral join --gpus`
    address: str = ""  # of the server's door for the machines; empty: the one that `corral token create` prints
    poll_s: float = 2.0


class SlurmSettings(LenderSettings, frozen=True, forbid_unknown_fields=True):
    """A Slurm cluster."""

    options: ClassVar[tuple[str, ...]] = ("partition", "account", "qos", "constraint", "time_limit")

    ssh: str = ""  # a login node, as `ssh` takes it; empty: Slurm's commands run on this machine
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_limit: str = ""  # such as 8:00:00
    gres: str = "gpu"  # the generic resource of GPUs, such as gpu or gpu:h100
    log_folder: str = ""  # on the nodes: for what pilots print; empty: it is not kept


class RaySettings(LenderSettings, frozen=True, forbid_unknown_fields=True):
    """A Ray cluster."""

    options: ClassVar[tuple[str, ...]] = ("accelerator_type",)

    dashboard: str = "http://127.0.0.1:8265"
    token_file: str = ""  # the token of the cluster, if it has RAY_AUTH_MODE=token; empty: the cluster needs none
    ray_python: str = "python"  # the command that runs the Python of the cluster on its head node
    accelerator_type: str = ""  # the model of GPU in Ray's words, such as H100
    resources: dict[str, float] = {}  # further resources of each placement group


KINDS: dict[str, type[LenderSettings]] = {"slurm": SlurmSettings, "ray": RaySettings}
