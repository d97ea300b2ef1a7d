"""Reads the values of a pipeline file: names, sizes, durations, commands, dependencies. Each function checks one kind of value.

A function gets the value and the list of problems. If the value breaks a rule, the function adds a problem to the list and returns
None. The text of a problem contains the value, the rule and the fix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import click

from corral.cli.pipelines.yaml_reader import Node, Problems, suggestion
from corral.cli.printing.output import DURATION

NAME_MAX = 50  # characters of the name of a pipeline or a step: a job is named PIPELINE-RUN-STEP, and Batch allows 128 characters
AFTER_MAX = 20  # the number of dependencies that Batch allows
TIMEOUT_MIN_S = 60
VCPUS_MAX = 1024
MEMORY_MIN_MIB, MEMORY_MAX_MIB = 4, 64 * 1024 * 1024
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_MAX - 1}}}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Batch or `corral pipeline` sets variables with these prefixes.
RESERVED = ("AWS_BATCH", "ARRAY_SIZE", "LIST_FILE_S3_PATH", "CORRAL_ARRAY_INDEXES", "CORRAL_PIPELINE")
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_MIB = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_LIST = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+")
_T = TypeVar("_T")


class After(NamedTuple):
    """An element of `after`: a step that must end before the step with this `after` starts.

    With `each`, child N waits only for child N of the earlier step (N_TO_N).
    """

    step: str
    each: bool = False


@dataclass(frozen=True, slots=True)
class MaxFailed:
    """The value of `max_failed`: if at most this number, or percentage, of children fail, the steps after the step still start."""

    count: int | None = None
    percent: float | None = None

    def allowed(self, size: int) -> int:
        return min(size, self.count if self.count is not None else math.floor(size * (self.percent or 0.0) / 100 + 1e-9))

    def __str__(self) -> str:
        return str(self.count) if self.count is not None else f"{self.percent:g}%"


class FileFields:
    """The keys and values of one mapping. An unknown key is added to the problems."""

    def __init__(self, node: Node, owner: str, known: tuple[str, ...], problems: Problems) -> None:
        self.node, self.owner, self.problems = node, owner, problems
        self.values: dict[str, Node] = node.value if isinstance(node.value, dict) else {}
        for key, value in self.values.items():
            if key not in known:
                fix = suggestion(key, known) or f" Known keys: {', '.join(known)}."
                problems.add(value.line, f"{owner} has an unknown key '{key}'.{fix}")

    def get(self, key: str, read: Callable[[Node, Problems], _T | None]) -> _T | None:
        node = self.values.get(key)
        if node is None:
            return None
        if node.value is None:
            self.problems.add(node.line, f"{self.owner}: {key} is empty. Write a value, or remove the key.")
            return None
        return read(node, self.problems)

    def required(self, key: str, read: Callable[[Node, Problems], _T | None]) -> _T | None:
        if key not in self.values:
            self.problems.add(self.node.line, f"{self.owner} has no `{key}:`. Add it.")
        return self.get(key, read)


def text_of(key: str) -> Callable[[Node, Problems], str | None]:
    def read(node: Node, problems: Problems) -> str | None:
        if isinstance(node.value, str) and node.value.strip():
            return node.value
        problems.add(node.line, f"{key} is {node.shown()}. Write it as text.")
        return None

    return read


def whole_number(key: str, low: int, high: int) -> Callable[[Node, Problems], int | None]:
    def read(node: Node, problems: Problems) -> int | None:
        text = node.value
        if isinstance(text, str) and re.fullmatch(r"[0-9]{1,9}", text) and low <= int(text) <= high:
            return int(text)
        problems.add(node.line, f"{key} is {node.shown()}. It must be a whole number from {low} to {high:,}.")
        return None

    return read


def read_name(node: Node, problems: Problems) -> str | None:
    if isinstance(node.value, str) and NAME.fullmatch(node.value):
        return node.value
    rule = f"A name has at most {NAME_MAX} letters, digits, - and _, and begins with a letter or digit."
    problems.add(node.line, f"name is {node.shown()}. {rule}")
    return None


def read_memory(node: Node, problems: Problems) -> int | None:
    match = _SIZE.fullmatch(node.value.strip()) if isinstance(node.value, str) else None
    mib = math.ceil(float(match[1]) * _MIB[match[2].lower()]) if match else 0
    if MEMORY_MIN_MIB <= mib <= MEMORY_MAX_MIB:
        return mib
    problems.add(node.line, f"memory is {node.shown()}. Write 512m, 2g or a number of MiB, at least {MEMORY_MIN_MIB}m.")
    return None


def read_vcpus(node: Node, problems: Problems) -> str | None:
    text = node.value
    if isinstance(text, str) and (text in ("0.25", "0.5") or (re.fullmatch(r"[0-9]{1,4}", text) and 1 <= int(text) <= VCPUS_MAX)):
        return text if "." in text else str(int(text))
    problems.add(
        node.line, f"vcpus is {node.shown()}. It must be a whole number from 1 to {VCPUS_MAX:,}; on Fargate also 0.25 or 0.5."
    )
    return None


def read_timeout(node: Node, problems: Problems) -> int | None:
    try:
        seconds = DURATION.convert(node.value, None, None) if isinstance(node.value, str) else 0
    except click.BadParameter:
        seconds = 0
    if TIMEOUT_MIN_S <= seconds < 2**31:
        return seconds
    problems.add(node.line, f"timeout is {node.shown()}. Write it as 90m, 4h or 1h30m; Batch requires at least {TIMEOUT_MIN_S}s.")
    return None


def read_command(node: Node, problems: Problems) -> tuple[str, ...] | None:
    """Return the command of a step. A text becomes a command of /bin/sh. A list is used unchanged."""
    if isinstance(node.value, str) and node.value.strip():
        return ("/bin/sh", "-c", node.value)
    if isinstance(node.value, list) and node.value and all(each.is_scalar for each in node.value):
        return tuple(str(each.value) for each in node.value)
    problems.add(
        node.line, f"command is {node.shown()}. Write a text, which runs in /bin/sh, or a list such as [python, train.py]."
    )
    return None


def read_list(node: Node, problems: Problems) -> str | None:
    if isinstance(node.value, str) and _LIST.fullmatch(node.value):
        return node.value
    problems.add(node.line, f"list is {node.shown()}. It must be an object in S3 with one item per line: s3://bucket/commands.txt.")
    return None


def read_max_failed(node: Node, problems: Problems) -> MaxFailed | None:
    text = node.value if isinstance(node.value, str) else ""
    if re.fullmatch(r"[0-9]{1,5}", text):
        return MaxFailed(count=int(text))
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%", text)
    if match and float(match[1]) <= 100:
        return MaxFailed(percent=float(match[1]))
    problems.add(node.line, f"max_failed is {node.shown()}. Write a number of children, such as 3, or a percentage, such as 5%.")
    return None


def read_environment(node: Node, problems: Problems) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(node.value, dict):
        problems.add(node.line, f"environment is {node.shown()}. Write a mapping: NAME: value.")
        return None
    found = []
    for name, value in node.value.items():
        if not VARIABLE.fullmatch(name):
            problems.add(
                value.line, f"'{name}' is not the name of a variable. Use letters, digits and _, and begin with a letter or _."
            )
        elif name.startswith(RESERVED):
            problems.add(value.line, f"the variable {name} is set by Batch or by `corral pipeline`. Choose another name.")
        elif not (value.is_scalar or value.value is None):
            problems.add(value.line, f"the variable {name} is {value.shown()}. Write its value as text.")
        else:
            found.append((name, str(value.value or "")))
    return tuple(found)


def read_after(node: Node, problems: Problems) -> tuple[After, ...] | None:
    found: list[After] = []
    for each in node.value if isinstance(node.value, list) else [node]:
        if isinstance(each.value, str):
            found.append(After(each.value))
        elif isinstance(each.value, dict) and list(each.value) == ["each"] and each.value["each"].is_scalar:
            found.append(After(str(each.value["each"].value), each=True))
        else:
            problems.add(each.line, f"after contains {each.shown()}. Write the names of steps: [prepare, {{each: recon}}].")
            return None
    names = [each.step for each in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(node.line, f"after names the step {name} twice. Remove one of them.")
    if len(found) > AFTER_MAX:
        problems.add(
            node.line, f"after names {len(found)} steps, but Batch allows {AFTER_MAX} dependencies. Add a step between them."
        )
    return tuple(found)


def mapping_of(key: str, node: Node, problems: Problems) -> dict[str, Node] | None:
    if isinstance(node.value, dict):
        return node.value
    problems.add(node.line, f"{key} is {node.shown()}. Write a mapping.")
    return None
