"""The settings of corral.toml: the options of `corral up`, the times of scaling, and the size of the history.

To add a setting, add it to one of the tuples that make up SETTINGS. The server gets the values of settings from
`Configuration.values` in `server/configuration.py`. Commands get them from `read_file`. The tables [instance-types] and
[lenders.NAME] are not declared here, because their keys are names of instance types and of lenders: `server/configuration.py` reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from corral.model.gpu import MODELS, SIMULATED_MAX
from corral.model.settings import HistorySettings, OutputSettings, ScalingTimes, UsageSettings

UP, SCALING, HISTORY, OUTPUTS, RUN, COST, INSTANCE_TYPES = "up", "scaling", "history", "outputs", "run", "cost", "instance-types"
JOIN, HOSTS, CLUSTERS, UPGRADE, LENDERS = "join", "hosts", "clusters", "upgrade", "lenders"
SHIP, SHARED_FOLDERS, AUDIT = "ship", "shared-folders", "audit"
USAGE, SHARES, TURNS = "usage", "shares", "turns"
TURNS_MAX = 100
IDLE_MAX_S = 30 * 86_400
TIME_MAX_S = 48 * 3600  # as long as UpdateTaskProtection can protect a task
HISTORY_DAYS_MAX, HISTORY_TASKS_MAX = 3_650, 100_000_000
OUTPUTS_MAX_MIB = 1_000_000_000
CERTIFICATE_DAYS_MAX = 3_650
PORT_MAX = 65_535
CONSOLE_PORT = 4568
PRICE_MAX = 1_000_000
TEXT_MAX = 4096
TEXTS_MAX = 20


class ConfigurationSetting(NamedTuple):
    table: str
    key: str
    default: Any
    about: str  # one line for `corral config`
    rule: str  # what a value must be; follows "must be" in error messages
    accepts: Callable[[Any], bool]

    @property
    def name(self) -> str:
        return f"{self.table}.{self.key}"

    def problem(self, value: Any) -> str | None:
        """Return why a value is not valid, or None if it is valid."""
        return None if self.accepts(value) else f"{self.key} is {value!r}, but it must be {self.rule}"

    def parse(self, words: Sequence[str]) -> Any:
        """Convert words of a command line to a value of the setting's type. If this is not possible, return the words as a text.

        For a list, the single word `[]` means an empty list.
        """
        if isinstance(self.default, list):
            return [] if list(words) == ["[]"] else list(words)
        text = " ".join(words)
        if isinstance(self.default, bool):
            return {"true": True, "false": False}.get(text.lower(), text)
        if isinstance(self.default, int | float):
            return _number(text)
        return text


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text) if len(text) <= 32 and "_" not in text else text
        except ValueError:
            continue
    return text


def whole(table: str, key: str, default: int, most: int, about: str) -> ConfigurationSetting:
    def accepts(value: Any) -> bool:
        return type(value) is int and 0 <= value <= most  # not isinstance: True is an int

    return ConfigurationSetting(table, key, default, about, f"a whole number from 0 to {most}", accepts)


def number(table: str, key: str, default: float, most: float, about: str) -> ConfigurationSetting:
    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and 0 <= value <= most

    return ConfigurationSetting(table, key, default, about, f"a number from 0 to {most:.15g}", accepts)


def flag(table: str, key: str, default: bool, about: str) -> ConfigurationSetting:
    return ConfigurationSetting(table, key, default, about, "true or false", lambda value: type(value) is bool)


def choice(table: str, key: str, default: str, choices: Sequence[str], about: str) -> ConfigurationSetting:
    return ConfigurationSetting(table, key, default, about, f"one of {', '.join(choices)}", lambda value: value in choices)


def text(table: str, key: str, default: str, pattern: str, rule: str, about: str) -> ConfigurationSetting:
    def accepts(value: Any) -> bool:
        return isinstance(value, str) and len(value) <= TEXT_MAX and re.fullmatch(pattern, value) is not None

    return ConfigurationSetting(table, key, default, about, rule, accepts)


def texts(table: str, key: str, about: str) -> ConfigurationSetting:
    """Return a setting that is a list of texts. Its default is an empty list."""

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) <= TEXTS_MAX
            and all(isinstance(each, str) and len(each) <= TEXT_MAX for each in value)
        )

    return ConfigurationSetting(table, key, [], about, f"a list of at most {TEXTS_MAX} texts", accepts)


_GPUS = (rf"auto|none|sim:([1-9]|[1-5][0-9]|6[0-4])(x(?i:{'|'.join(MODELS)}))?",
         f"auto, none, or 1 to {SIMULATED_MAX} simulated GPUs, such as sim:8 or sim:2xH200. The models are {', '.join(MODELS)}",
         "the GPUs: auto, none, or simulated GPUs")  # fmt: skip
_CLUSTER = (
    r"[a-zA-Z0-9_-]{1,255}",
    "up to 255 letters, digits, hyphens and underscores",
    "the ECS cluster that this machine joins",
)
_INSTANCE_TYPE = (r"[a-z0-9-]{1,32}\.[a-z0-9-]{1,32}", "a family and a size, such as p3.8xlarge",
                  "the attribute ecs.instance-type of this machine")  # fmt: skip
_EXCLUDED = (r"[0-9A-Za-z, -]*", "a list of GPUs by index or id, such as 0,3", "GPUs that tasks never get")
_WORD = r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}"
_WORD_RULE = "up to 63 letters, digits, dots, hyphens and underscores"

_NAME = r"[0-9A-Za-z._:-]{1,253}"

_ADDRESS = (r"|[0-9]{1,3}(\.[0-9]{1,3}){3}", "an IPv4 address such as 10.0.0.6; empty: found by Corral",
            "the address of this machine for tasks on other hosts")  # fmt: skip
_INTERFACE = (r"|[!-.0-~]{1,15}", "the name of a network interface, such as eth0; empty: that of the address",
              "the network interface for tasks on other hosts")  # fmt: skip

_UP = (
    whole(UP, "port", 4566, PORT_MAX, "the port to listen on; 0 chooses a free port at every start"),
    text(UP, "host", "", r"|[0-9A-Za-z.:_-]{1,255}", "an address of this machine, such as 127.0.0.1 or 0.0.0.0",
         "the address to listen on; empty: 127.0.0.1, or with TLS all addresses"),
    text(UP, "gpus", "auto", *_GPUS),
    text(UP, "exclude_gpus", "", *_EXCLUDED),
    choice(UP, "runtime", "auto", ("auto", "process", "docker"), "how tasks with an image run"),
    flag(UP, "isolate", False, "refuse tasks with access to this machine"),
    text(UP, "cluster", "default", *_CLUSTER),
    text(UP, "instance_type", "corral.host", *_INSTANCE_TYPE),
    text(UP, "account", "123456789012", "[0-9]{12}", "a text of twelve digits", "the AWS account id in ARNs"),
    choice(UP, "alarm_timing", "fast", ("fast", "aws"), "when alarms are evaluated"),
    text(UP, "door", "", r"|(\[[0-9A-Fa-f:.]{2,45}\]:|[0-9A-Za-z.-]{1,253}:)?[0-9]{1,5}",
         "[ADDRESS:]PORT, such as 4567 or 10.0.0.5:4567", "where other machines join; empty: only this machine"),
    text(UP, "address", "", *_ADDRESS),
    text(UP, "interface", "", *_INTERFACE),
    flag(UP, "tls", False, "serve other machines, with TLS"),
    text(UP, "tls_names", "", rf"|{_NAME}(,{_NAME}){{0,31}}", "names or addresses, separated by commas",
         "names of this machine for its certificate, besides its host name and addresses"),
    text(UP, "tls_certificate", "", r"|/.*", "the absolute path of a file", "a certificate for TLS; empty: Corral makes one"),
    text(UP, "tls_key", "", r"|/.*", "the absolute path of a file", "the key of tls_certificate"),
    whole(UP, "tls_port", 0, PORT_MAX, "a further port for other machines, such as 443; 0: none"),
    flag(UP, "plain_http", False, "let other machines use plain HTTP, too"),
    whole(UP, "console_port", CONSOLE_PORT, PORT_MAX, "the port of the web console; 0 chooses a free port at every start"),
)  # fmt: skip

_JOIN = (
    text(JOIN, "gpus", "auto", *_GPUS),
    text(JOIN, "exclude_gpus", "", *_EXCLUDED),
    choice(JOIN, "runtime", "auto", ("auto", "process", "docker"), "how tasks with an image run on this host"),
    text(JOIN, "cluster", "", f"|{_CLUSTER[0]}", _CLUSTER[1], "the ECS cluster that this host joins; empty: that of the server"),
    text(JOIN, "instance_type", "corral.host", *_INSTANCE_TYPE),
    text(JOIN, "rack", "", f"|{_WORD}", _WORD_RULE, "the rack of this host"),
    text(JOIN, "labels", "", rf"|{_WORD}=[\w.:/@ -]{{0,128}}(,{_WORD}=[\w.:/@ -]{{0,128}})*", "NAME=VALUE, separated by commas",
         "attributes of this host for placement constraints"),
    text(JOIN, "address", "", *_ADDRESS),
    text(JOIN, "interface", "", *_INTERFACE),
)  # fmt: skip

_SCALING_ABOUT = {
    "busy_wait_s": "how long a scale-in or a rollout waits for a busy task; 0: not at all",
    "target_tracking_out_s": "how long a metric is above its target before a policy scales out",
    "target_tracking_in_s": "how long a metric is low before a policy scales in",
    "capacity_provider_in_s": "how long instances are idle before a capacity provider scales its group in",
    "environment_in_s": "how long an instance of a compute environment is idle before it is terminated",
    "provisioning_wait_s": "how long a task waits for an instance before it is stopped; 0: without a limit",
}
_SCALING = tuple(
    number(SCALING, key, getattr(ScalingTimes(), key), TIME_MAX_S, _SCALING_ABOUT[key]) for key in ScalingTimes.__struct_fields__
)

_HISTORY = (
    number(HISTORY, "days", HistorySettings().days, HISTORY_DAYS_MAX, "how many days `corral history` keeps stopped tasks"),
    whole(HISTORY, "tasks", HistorySettings().tasks, HISTORY_TASKS_MAX, "how many stopped tasks `corral history` keeps at most"),
)

_OUTPUTS = (
    whole(OUTPUTS, "file_mib", OutputSettings().file_mib, OUTPUTS_MAX_MIB, "how many MiB the output file of a run has; 0: no file"),
    whole(OUTPUTS, "total_mib", OutputSettings().total_mib, OUTPUTS_MAX_MIB, "how many MiB all output files have together at most"),
    number(OUTPUTS, "days", OutputSettings().days, HISTORY_DAYS_MAX, "how many days the output file of a run is kept"),
)

_RUN = (
    texts(RUN, "notify", "the notifications at the end of each run, if `corral run` has no --notify"),
    choice(RUN, "gpu_ids", "uuid", ("uuid", "index"), "how CUDA_VISIBLE_DEVICES names the GPUs of a task"),
)

_HOSTS = (number(HOSTS, "certificate_days", 30, CERTIFICATE_DAYS_MAX, "how many days a certificate of a joined host is valid"),)

_UPGRADE = (
    text(UPGRADE, "wheels", "", r"|/.*", "the absolute path of a folder",
         "a folder on the server with wheels of compiled dependencies, for `corral hosts upgrade`"),
)  # fmt: skip

_SHIP = (
    whole(SHIP, "folder_mib", 1024, OUTPUTS_MAX_MIB, "how many MiB a folder of `corral run --ship` has at most"),
    whole(SHIP, "total_mib", 20_480, OUTPUTS_MAX_MIB, "how many MiB of shipped folders are stored at most"),
    whole(SHIP, "days", 30, HISTORY_DAYS_MAX, "how many days shipped folders are stored"),
    texts(SHARED_FOLDERS, "paths", "folders that all hosts share, which `corral run --ship` does not send"),
)

_COST = (
    number(COST, "gpu_hour", 0, PRICE_MAX, "the price of a GPU-hour of this machine in US dollars, for `corral cost`; 0: none"),
)

_USAGE = (
    number(USAGE, "idle_after_s", UsageSettings().idle_after_s, IDLE_MAX_S,
           "how long GPUs do nothing before `corral status` and `corral top` say who holds them; 0: they never do"),
    text(USAGE, "notify", "", r"|arn:[a-z-]{1,20}:sns:[a-z0-9-]{1,30}:[0-9]{12}:[0-9A-Za-z_.-]{1,256}", "the ARN of a topic of SNS",
         "the topic of SNS that gets a message about each of them; empty: none"),
)  # fmt: skip

_SHARES = (
    text(SHARES, "half_life", "7d", r"[1-9][0-9]{0,3}[hdw]", "a number of hours, days or weeks, such as 12h, 7d or 2w",
         "after how long the use of GPUs counts half in the line"),
)  # fmt: skip

_TURNS = (whole(TURNS, "most_per_gpu", 4, TURNS_MAX, "how many tasks at most take turns on one GPU (`corral run --turns`)"),)

_DATA_SERVICES = ("cloudwatch", "lambda", "logs", "s3", "sns", "sqs")
_AUDIT = (
    ConfigurationSetting(
        AUDIT, "data", [], "the services whose calls about data, such as objects and messages, are in the audit",
        f"a list of {', '.join(_DATA_SERVICES)}",
        lambda value: isinstance(value, list) and all(each in _DATA_SERVICES for each in value),
    ),
)  # fmt: skip

_ALL = (
    *_UP,
    *_JOIN,
    *_HOSTS,
    *_SCALING,
    *_HISTORY,
    *_OUTPUTS,
    *_RUN,
    *_SHIP,
    *_UPGRADE,
    *_COST,
    *_USAGE,
    *_SHARES,
    *_TURNS,
    *_AUDIT,
)
SETTINGS: dict[str, ConfigurationSetting] = {setting.name: setting for setting in _ALL}
TABLES = (*dict.fromkeys(setting.table for setting in SETTINGS.values()), INSTANCE_TYPES, CLUSTERS, LENDERS)
HAND_WRITTEN = (INSTANCE_TYPES, CLUSTERS, LENDERS)  # tables whose keys are names: `server/configuration.py` reads them
UP_OPTIONS: dict[str, ConfigurationSetting] = {setting.key: setting for setting in _UP}  # the options of `corral up`, by key
JOIN_OPTIONS: dict[str, ConfigurationSetting] = {setting.key: setting for setting in _JOIN}  # the options of `corral join`


def defaults() -> dict[str, Any]:
    return {name: setting.default for name, setting in SETTINGS.items()}
