"""Names of runs. In this module, a run is any ECS task, also one that `corral run` did not start.

The name of a run is the value of `--name`, or the name of the script. The family of an ECS task definition can have only letters,
digits, `_` and `-`, so the family is derived from the name. If family and name differ, the tag `corral:name` of the task contains
the name. Commands find runs by name, by the beginning of the id, or by a glob such as `lr*`. If several runs have the same name,
commands use the latest run.

`corral run --array` starts an array: one task for each index. Its tasks are the members of the array. They have the same name, and
the same `startedBy`, which contains the id of the array. The name or the id of an array means all its members. `NAME:17` and
`ID:17` mean the member with the index 17. Commands print its name as `NAME[17]`, which they accept, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, NamedTuple

import click

from corral.cli import tasks
from corral.cli.endpoint import Endpoint, client
from corral.cli.errors import RunNotFound
from corral.cli.output import print_message

NAME_MAX = 255  # characters; this is also the limit of a family
_NAME = re.compile(r"(?:[\w.:/=+@-]|[^\S\t-\r])+")  # the characters that ECS accepts in the value of a tag
_SCRIPT = re.compile(r"\.(?:py|ipynb|sh|bash|zsh|fish|js|mjs|ts|rb|pl|R|r|jl|lua|m)$")
_CODE = re.compile(r"-[a-zA-Z]*[ce]")  # the next argument is a program's text, as in `python -c TEXT`
_ARRAY_ID = re.compile(r"[0-9a-f]{12}")
_MEMBER = re.compile(r"([^*?\[]+)\[([0-9]{1,9})\]")
_GLOB = re.compile(r"[*?\[]")
RunId = tuple[str, str]  # the cluster and the id of a task


def check_name(name: str | None) -> None:
    if name is not None and not (len(name) <= NAME_MAX and _NAME.fullmatch(name) and name.strip()):
        raise click.BadParameter(
            f"'{name}' is not a name: use 1 to {NAME_MAX} letters, digits, spaces and _ . : / = + - @.",
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


def image_name(image: str) -> str:
    """Return the name of runs of an image without a command: `lab/pytorch:2.1` → `pytorch`."""
    return PurePath(image.partition("@")[0]).name.partition(":")[0]


def name_tags(name: str) -> list[dict[str, str]]:
    return [{"key": tasks.NAME_TAG, "value": name}] if name != family_of(name) else []


def find_runs(ecs: Any, given: str, cluster: str, *, unfinished: bool = False) -> list[RunId]:
    """Find the runs that an argument of the command line names: by an ARN, an id, a name, the beginning of an id, or a glob.

    A glob selects the latest run of each matching name. An array is replaced by its members. With `unfinished`, runs that have not
    stopped are preferred: a name selects a stopped run only if no other run has this name, and a glob selects no stopped run.
    """
    return [
        run
        for each in _find(ecs, given, cluster, unfinished=unfinished)
        for run in (array_members(ecs, each.array_id, each.cluster, unfinished=unfinished) if each.array_id else [each.run_id])
    ]


def describe_runs(ecs: Any, found: Sequence[RunId]) -> list[dict[str, Any]]:
    """Describe runs, in the given order. Raise CliError if one does not exist."""
    described: dict[str, dict[str, Any]] = {}
    for cluster in dict.fromkeys(of_cluster for of_cluster, _ in found):
        ids = [task_id for of_cluster, task_id in found if of_cluster == cluster]
        described |= {tasks.id_of(task): task for task in tasks.describe(ecs, ids, cluster)}
    return [tasks.only([described[task_id]] if task_id in described else [], task_id, cluster) for cluster, task_id in found]


def find_dependencies(endpoint: Endpoint, given: str, cluster: str) -> list[str]:
    """Return what the tag of --after contains for an argument: task ids, and `array:ID` for an array."""
    found = _find(client(endpoint, "ecs"), given, cluster)
    return [f"array:{each.array_id}" if each.array_id else each.task_id for each in found]


def array_members(ecs: Any, array_id: str, cluster: str, *, unfinished: bool = False) -> list[RunId]:
    """Return the members of an array. With `unfinished`, omit members that stop or have stopped.

    Members that stop or have stopped come last. Apart from that, members are in the order in which they were created.
    """
    states = ["RUNNING"] if unfinished else ["RUNNING", "STOPPED"]
    started_by = tasks.STARTED_BY_ARRAY + array_id
    ids = dict.fromkeys(task_id for state in states for task_id in tasks.list_ids(ecs, state, cluster, startedBy=started_by))
    return [(cluster, task_id) for task_id in ids]


class _Found(NamedTuple):
    """A run or an array that an argument of the command line names."""

    cluster: str
    task_id: str
    array_id: str = ""

    @property
    def run_id(self) -> RunId:
        return self.cluster, self.task_id


def _find(ecs: Any, given: str, cluster: str, *, unfinished: bool = False) -> list[_Found]:
    if tasks.is_exact(given):
        return [_Found(*tasks.find(ecs, given, cluster))]
    if (member := _MEMBER.fullmatch(given)) is not None:
        with suppress(RunNotFound):  # `NAME[17]` may also be a glob
            return [_find_by_id(ecs, f"{member[1]}:{member[2]}", cluster, unfinished=unfinished)]
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
            return [_find_by_id(ecs, given, cluster, unfinished=unfinished)]
    return [_Found(cluster, tasks.id_of(task), tasks.array_id(task)) for task in _latest(matching)]


def _find_by_id(ecs: Any, given: str, cluster: str, *, unfinished: bool) -> _Found:
    """Find an array by its id, a member by its index, or a task by the beginning of its id."""
    if _ARRAY_ID.fullmatch(given.lower()) and (members := array_members(ecs, given.lower(), cluster)):
        return _Found(*members[0], given.lower())
    of_array, _, index = given.rpartition(":")
    if of_array and re.fullmatch("[0-9]{1,9}", index):
        [array, *_] = _find(ecs, of_array, cluster, unfinished=unfinished)
        ids = [task_id for _, task_id in array_members(ecs, array.array_id, cluster)] if array.array_id else []
        # A member that was requeued has several tasks.
        found = [task for task in tasks.describe(ecs, ids, cluster) if tasks.array_index(task) == int(index)]
        if not found:
            raise RunNotFound(f"{of_array} has no member with the index {index}: `corral ps --all {of_array}` lists its members.")
        return _Found(cluster, tasks.id_of(max(found, key=lambda task: task["createdAt"])))
    return _Found(*tasks.find(ecs, given, cluster))


def find_run(ecs: Any, given: str, cluster: str, *, unfinished: bool = False) -> RunId:
    """Find one run. If a glob or an array means several runs, return the last run that `find_runs` returns."""
    found = find_runs(ecs, given, cluster, unfinished=unfinished)
    if len(found) > 1:
        print_message(f"{given} means {len(found)} tasks: using the last of them, {tasks.short(found[-1][1])}")
    return found[-1]


def select(found: list[dict[str, Any]], given: Iterable[str]) -> list[dict[str, Any]]:
    """Return the tasks that these arguments mean. Here a name means all tasks with this name."""
    chosen: dict[str, dict[str, Any]] = {}
    for each in given:
        named = [task for task in found if fnmatchcase(tasks.name(task), each)]
        others = [task for task in found if _matches_id(task, each)]
        chosen |= {task["taskArn"]: task for task in named or others}
    return list(chosen.values())


def _matches_id(task: dict[str, Any], given: str) -> bool:
    """Whether the argument is the ARN or the beginning of the id of a task, the id of its array, or NAME:INDEX or ID:INDEX."""
    array_id, index = tasks.array_id(task), tasks.array_index(task)
    if array_id and given.lower() in (array_id, f"{array_id}:{index}"):
        return True
    is_member = index is not None and given in (f"{tasks.name(task)}:{index}", tasks.label(task))
    return is_member or tasks.id_of(task).startswith(given.lower()) or bool(task["taskArn"] == given)


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
        if len({tasks.array_id(run) or tasks.id_of(run) for run in runs}) > 1:
            array_id = tasks.array_id(runs[-1])
            shown = f"array {array_id}" if array_id else tasks.short(tasks.id_of(runs[-1]))
            print_message(f"{len(runs)} tasks have the name {name}: using the latest, {shown}")
        latest.append(runs[-1])
    return sorted(latest, key=lambda task: (task["createdAt"], task["taskArn"]))
