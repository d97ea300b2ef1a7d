"""The settings of lenders: the tables [lenders.NAME] of corral.toml."""

from __future__ import annotations

from msgspec import Struct

SLURM_OPTIONS = ("partition", "account", "qos", "constraint", "time_limit")


class SlurmSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A Slurm cluster. Tags of an instance (`corral:slurm-partition`) replace the options that `allow` names, by these values."""

    kind: str = "slurm"
    ssh: str = ""  # a login node, as `ssh` takes it; empty: Slurm's commands run on this machine
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_limit: str = ""  # such as 8:00:00
    gres: str = "gpu"  # the generic resource of GPUs, such as gpu or gpu:h100
    allow: dict[str, list[str]] = {}  # option → the values that tags may choose
    python: str = ""  # a Python on the nodes that has Corral; empty: that of the server, on a file system that the machines share
    setup: str = ""  # lines of shell that run before the pilot, such as `module load cuda`
    folder: str = "/tmp"  # on the nodes: a pilot has its files in a new folder below it
    log_folder: str = ""  # on the nodes: for what pilots print; empty: it is not kept
    gpus: str = "auto"  # which GPUs the nodes have, as for `corral join --gpus`
    address: str = ""  # of the server's door for the nodes; empty: the one that `corral token create` prints
    poll_s: float = 2.0
