"""Names of runs. A run is a task that `corral run` has started, or any other ECS task.

The name of a run is the value of `--name`, or the name of the script. The family of an ECS task definition can have only letters,
digits, `_` and `-`, so the family is derived from the name. If family and name differ, the tag `corral:name` of the task contains
the name. Commands find runs by name, by the beginning of the id, or by a glob such as `lr*`. If several runs have the same name,
commands use the latest run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import click

from corral.cli import tasks
from corral.cli.errors import RunNotFound
from corral.cli.output import print_message

NAME_MAX = 255  # characters; this is also the limit of a family
_NAME = re.compile(r"(?:[\w.:/=+@-]|[^\S\t-\r])+")  # the characters that ECS accepts in the value of a tag
_SCRIPT = re.compile(r"\.(?:py|ipynb|sh|bash|zsh|fish|js|mjs|ts|rb|pl|R|r|jl|lua|m)$")
_CODE = re.compile(r"-[a-zA-Z]*[ce]")  # the next argument is a program's text, as in `python -c TEXT`
_GLOB = re.compile(r"[*?\[]")
RunId = tuple[str, str]  # the cluster and the id of a task


def check_name(name: str | None) -> None:
    if name is not None and not (len(name) <= NAME_MAX and _NAME.fullmatch(name) and name.strip()):
        raise click.BadParameter(
            f"'{name}' is not a name: use 1 to {NAME_MAX} letters, digits, spaces and _ . : / = + - @, which a tag can contain.",
            param_hint="--name",
        )
    if name is not None and name.lower().startswith("aws:"):
        raise click.BadParameter("names that begin with aws: are reserved.", param_hint="--name")


def family_of(name: str) -> str:
    """Return the family of runs with this name."""
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-")[:NAME_MAX] or "run"


def default_name(command: Sequence[str]) -> str:
    """Return the name of the script in a command, without its suffix. Without a script, return the module or the program.

    The name of `python -u train.py --lr 1` and of `torchrun --nproc-per-node 4 train.py` is `train`. The name of `python -m
    lab.train` is `lab.train`.
    """
    program = PurePath(command[0]).name
    for at, word in enumerate(command):
        if _SCRIPT.search(word):
            name = PurePath(word).stem
            break
        if at and _CODE.fullmatch(word):
            name = program
            break
        if at and word == "-m" and program.startswith(("python", "pypy")) and command[at + 1 :]:
            name = command[at + 1]
            break
    else:
        name = program
    return name[:NAME_MAX] if _NAME.fullmatch(name[:NAME_MAX]) else family_of(name)


def name_tags(name: str) -> list[dict[str, str]]:
    return [{"key": tasks.NAME_TAG, "value": name}] if name != family_of(name) else []


def find_runs(ecs: Any, given: str, cluster: str, *, unfinished: bool = False) -> list[RunId]:
    """Find the runs that an argument of the command line names: by an ARN, an id, a name, the beginning of an id, or a glob.

    A glob selects the latest run of each matching name. With `unfinished`, runs that have not stopped are preferred: a name selects
    a stopped run only if no other run has this name, and a glob selects no stopped run.
    """
    if tasks.is_exact(given):
        return [tasks.find(ecs, given, cluster)]
    if _GLOB.search(given):
        wanted = ["RUNNING"] if unfinished else ["RUNNING", "STOPPED"]
        matching = [task for task in _listed(ecs, cluster, wanted) if fnmatchcase(tasks.name(task), given)]
        if not matching:
            state = "that has not stopped " if unfinished else ""
            raise RunNotFound(f"no task {state}has a name that matches {given}: `corral ps --all` lists the tasks.")
    else:
        matching = []
        for wanted in [["RUNNING"], ["STOPPED"]] if unfinished else [["RUNNING", "STOPPED"]]:
            listed = _listed(ecs, cluster, wanted, family=family_of(given))
            matching = [task for task in listed if tasks.name(task) == given]
            if matching:
                break
        if not matching:
            return [tasks.find(ecs, given, cluster)]
    return [(cluster, tasks.id_of(task)) for task in _latest(matching)]


def find_run(ecs: Any, given: str, cluster: str, *, unfinished: bool = False) -> RunId:
    """Find one run. If a glob matches several names, return the latest run."""
    found = find_runs(ecs, given, cluster, unfinished=unfinished)
    if len(found) > 1:
        print_message(f"{len(found)} names match {given}: using the latest task, {tasks.short(found[-1][1])}")
    return found[-1]


def select(found: list[dict[str, Any]], given: Iterable[str]) -> list[dict[str, Any]]:
    """Return the tasks that these arguments mean. Here a name means all tasks with this name."""
    chosen: dict[str, dict[str, Any]] = {}
    for each in given:
        named = [task for task in found if fnmatchcase(tasks.name(task), each)]
        others = [task for task in found if tasks.id_of(task).startswith(each.lower()) or task["taskArn"] == each]
        chosen |= {task["taskArn"]: task for task in named or others}
    return list(chosen.values())


def _listed(ecs: Any, cluster: str, desired: Iterable[str], **filters: str) -> list[dict[str, Any]]:
    ids = dict.fromkeys(task_id for status in desired for task_id in tasks.list_ids(ecs, status, cluster, **filters))
    return tasks.describe(ecs, list(ids), cluster)


def _latest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the latest task of each name, oldest first. Print a message for each name with several tasks."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for task in sorted(found, key=lambda task: (task["createdAt"], task["taskArn"])):
        by_name.setdefault(tasks.name(task), []).append(task)
    latest = []
    for name, runs in by_name.items():
        if len(runs) > 1:
            print_message(f"{len(runs)} tasks have the name {name}: using the latest, {tasks.short(tasks.id_of(runs[-1]))}")
        latest.append(runs[-1])
    return sorted(latest, key=lambda task: (task["createdAt"], task["taskArn"]))
