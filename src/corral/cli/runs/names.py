"""Names of runs, by which commands find ECS tasks.

The name of a run is the value of `--name`, or the name of the script. The family of an ECS task definition can have only letters,
digits, `_` and `-`, so the family is derived from the name. If family and name differ, the tag `corral:name` of the task contains
the name. Commands find runs by name, by the beginning of the id, or by a glob such as `lr*`. If several runs have the same name,
commands use the latest run. A name comes before the beginning of an id, also if only the history has a run with this name.

`corral run --array` starts an array: one task for each index. Its tasks are the members of the array. They have the same name, and
the same `startedBy`, which contains the id of the array. The name or the id of an array means all its members. `NAME:17` means the
latest run with this name and the index 17, also if a newer run without an index has the same name. `ID:17` means a member of the
array with this id. Commands print `NAME:17`, and also accept `NAME[17]`.

Commands search the cluster of the option `--cluster`. Without this option they search the cluster of the endpoint first, and then
the other clusters of the region, because `corral status` and `corral top` show the tasks of all clusters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, NamedTuple

import click

from corral.cli.client.endpoint import Endpoint, call, client, is_aws
from corral.cli.printing.errors import CliError, RunNotFound
from corral.cli.printing.output import print_message
from corral.cli.runs import tasks

NAME_MAX = 255  # characters; this is also the limit of a family
_NAME = re.compile(r"(?:[\w.:/=+@-]|[^\S\t-\r])+")  # the characters that ECS accepts in the value of a tag
_SCRIPT = re.compile(r"\.(?:py|ipynb|sh|bash|zsh|fish|js|mjs|ts|rb|pl|R|r|jl|lua|m)$")
_CODE = re.compile(r"-[a-zA-Z]*[ce]")  # the next argument is a program's text, as in `python -c TEXT`
_ARRAY_ID = re.compile(r"[0-9a-f]{12}")
_MEMBER = re.compile(r"([^*?\[]+)(?::([0-9]{1,9})|\[([0-9]{1,9})\])")
_GLOB = re.compile(r"[*?\[]")
RunId = tuple[str, str]  # the cluster and the id of a task


def check_name(name: str | None) -> None:
    """Refuse names that no tag can contain, and names that commands would read as an id or as an option."""
    if name is None:
        return
    if not (len(name) <= NAME_MAX and _NAME.fullmatch(name) and name.strip()):
        why = f"is not a name: use 1 to {NAME_MAX} letters, digits, spaces and _ . : / = + - @."
    elif name.startswith("-") or name != name.strip():
        why = "is not a name: it must not begin with - or a space, and not end with a space."
    elif tasks.is_exact(name):
        why = "is not a name: commands would read it as the id or the ARN of a task."
    elif name.lower().startswith("aws:"):
        why = "is not a name: names that begin with aws: are reserved."
    else:
        return
    raise click.BadParameter(f"'{name}' {why}", param_hint="--name")


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
    name = name[:NAME_MAX].strip()
    if tasks.is_exact(name):
        return f"run-{family_of(name)}"[:NAME_MAX]
    return name if _NAME.fullmatch(name) and not name.lower().startswith(("-", "aws:")) else family_of(name)


def image_name(image: str) -> str:
    """Return the name of runs of an image without a command: `lab/pytorch:2.1` → `pytorch`."""
    return PurePath(image.partition("@")[0]).name.partition(":")[0]


def name_tags(name: str) -> list[dict[str, str]]:
    return [{"key": tasks.NAME_TAG, "value": name}] if name != family_of(name) else []


def is_glob(given: str) -> bool:
    return _GLOB.search(given) is not None


def find_runs(endpoint: Endpoint, given: str, cluster: str | None, *, unfinished: bool = False) -> list[RunId]:
    """Find the runs that an argument of the command line names: by an ARN, an id, a name, the beginning of an id, or a glob.

    A glob selects the latest run of each matching name. An array is replaced by its members. With `unfinished`, runs that have not
    stopped are preferred: a name selects a stopped run only if no other run has this name, and a glob selects no stopped run.
    `cluster` is the value of --cluster, or None.
    """
    ecs = client(endpoint, "ecs")
    return [
        run
        for each in _find_in_clusters(endpoint, given, cluster, unfinished=unfinished)
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
    found = _find(endpoint, given, cluster, unfinished=False)
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


def _find_in_clusters(endpoint: Endpoint, given: str, cluster: str | None, *, unfinished: bool) -> list[_Found]:
    ecs, first = client(endpoint, "ecs"), cluster or endpoint.cluster
    try:
        return _find(endpoint, given, first, unfinished=unfinished)
    except RunNotFound:
        elsewhere: dict[str, list[_Found]] = {}
        if cluster is None:
            arns = [arn for page in ecs.get_paginator("list_clusters").paginate() for arn in page["clusterArns"]]
            for name in (arn.rpartition("/")[2] for arn in arns):
                with suppress(RunNotFound):
                    if name != first:
                        elsewhere[name] = _find(endpoint, given, name, unfinished=unfinished)
        if not elsewhere:
            raise
    if len(elsewhere) > 1:
        raise CliError(f"the clusters {', '.join(elsewhere)} have runs with the name {given}: choose one with --cluster.")
    [(name, found)] = elsewhere.items()
    print_message(f"{given} is in cluster {name}")
    return found


def _find(endpoint: Endpoint, given: str, cluster: str, *, unfinished: bool) -> list[_Found]:
    ecs = client(endpoint, "ecs")
    if tasks.is_exact(given):
        found = _Found(*tasks.find(ecs, given, cluster))
        if not tasks.describe(ecs, [found.task_id], found.cluster):
            listed = "`corral ps` lists the tasks that run or wait, `corral history` those that ended"
            raise RunNotFound(f"there is no run {found.task_id} in cluster {found.cluster}: {listed}.")
        return [found]
    if is_glob(given):
        with suppress(RunNotFound):  # `NAME[17]` may also be a glob
            if member := _find_member(ecs, given, cluster, unfinished=unfinished):
                return [member]
        wanted = ["RUNNING"] if unfinished else ["RUNNING", "STOPPED"]
        matching = [task for task in _listed(ecs, cluster, wanted) if fnmatchcase(tasks.name(task), given)]
        if not matching:
            state = "that has not stopped " if unfinished else ""
            raise RunNotFound(f"no task {state}has a name that matches {given}: `corral ps --all` lists the tasks.")
        return [_found(task, cluster) for task in _latest(matching)]
    if matching := named_runs(ecs, given, cluster, unfinished=unfinished):
        return [_found(task, cluster) for task in _latest(matching)]
    if member := _find_member(ecs, given, cluster, unfinished=unfinished):
        return [member]
    if _ARRAY_ID.fullmatch(given.lower()) and (members := array_members(ecs, given.lower(), cluster)):
        return [_Found(*members[0], given.lower())]
    try:
        if tasks.is_prefix(given) and _is_in_history(endpoint, given):
            raise RunNotFound(f"no task has the name {given}: `corral history {given}` lists the ended runs with this name.")
        return [_Found(*tasks.find(ecs, given, cluster))]
    except RunNotFound:
        # Users can set the tag with the name by hand. Then the family is not derived from the name.
        tagged = [task for task in _listed(ecs, cluster, ["RUNNING"]) if given in (tasks.name(task), tasks.label(task))]
        if not tagged:
            raise
        return [_found(task, cluster) for task in _latest(tagged)]


def _is_in_history(endpoint: Endpoint, name: str) -> bool:
    """Whether the history has a run with this name."""
    if is_aws(endpoint):
        return False
    return bool(call(endpoint, "GetHistory", {"name": name, "latest": True, "limit": 1})[0]["tasks"])


def _found(task: dict[str, Any], cluster: str) -> _Found:
    return _Found(cluster, tasks.id_of(task), tasks.array_id(task))


def named_runs(ecs: Any, name: str, cluster: str, *, unfinished: bool = False) -> list[dict[str, Any]]:
    """Return the tasks with this name. With `unfinished`, return stopped tasks only if there are no others."""
    for wanted in [["RUNNING"], ["STOPPED"]] if unfinished else [["RUNNING", "STOPPED"]]:
        listed = _listed(ecs, cluster, wanted, family=family_of(name))
        if matching := [task for task in listed if tasks.name(task) == name]:
            return matching
    return []


def member_of(given: str) -> tuple[str, int] | None:
    """Return the name (or the id) of the array and the index, if `given` has the form `NAME:17` or `NAME[17]`."""
    match = _MEMBER.fullmatch(given)
    return (match[1], int(match[2] or match[3])) if match is not None else None


def _find_member(ecs: Any, given: str, cluster: str, *, unfinished: bool) -> _Found | None:
    """Find the latest task with this name and this index. Raise RunNotFound if only other indexes exist."""
    member = member_of(given)
    if member is None:
        return None
    name, index = member
    runs = named_runs(ecs, name, cluster)
    if not runs and _ARRAY_ID.fullmatch(name.lower()):
        ids = [task_id for _, task_id in array_members(ecs, name.lower(), cluster)]
        runs = tasks.describe(ecs, ids, cluster)
    found = [task for task in runs if tasks.array_index(task) == index]
    found = [task for task in found if unfinished and task["desiredStatus"] == "RUNNING"] or found
    if not found:
        if any(tasks.array_id(task) for task in runs):
            raise RunNotFound(f"{name} has no member with the index {index}: `corral ps --all {name}` lists its members.")
        return None
    return _Found(cluster, tasks.id_of(max(found, key=lambda task: task["createdAt"])))  # a requeued member has several tasks


def find_run(endpoint: Endpoint, given: str, cluster: str | None, *, unfinished: bool = False) -> RunId:
    """Find one run. If a glob or an array means several runs, return the last run that `find_runs` returns."""
    found = find_runs(endpoint, given, cluster, unfinished=unfinished)
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
    is_member = index is not None and given in (tasks.label(task), f"{tasks.name(task)}[{index}]")
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
            hidden = dict.fromkeys(tasks.array_id(run) for run in runs if tasks.array_id(run)) if not array_id else ()
            others = f"; array {', '.join(hidden)} has the same name" if hidden else ""
            print_message(f"{len(runs)} tasks have the name {name}: using the latest, {shown}{others}")
        latest.append(runs[-1])
    return sorted(latest, key=lambda task: (task["createdAt"], task["taskArn"]))
