"""Reads and checks a pipeline file.

A **pipeline** is a list of steps in a YAML file. A **step** is one job of AWS Batch, or one array job. The children of an array job
run the same command with different indexes. A step starts when the steps in its `after` have succeeded, or have ended with at
most `max_failed` failed children. `plan.py` decides which jobs are submitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from corral.cli.pipelines.fields import (
    NAME,
    NAME_MAX,
    VARIABLE,
    After,
    FileFields,
    MaxFailed,
    mapping_of,
    read_after,
    read_command,
    read_environment,
    read_list,
    read_max_failed,
    read_memory,
    read_name,
    read_timeout,
    read_vcpus,
    text_of,
    whole_number,
)  # fmt: skip
from corral.cli.pipelines.yaml_reader import Node, Problems, read_yaml, substitute, suggestion
from corral.cli.printing.errors import CliError

TOP_KEYS = ("name", "parameters", "queues", "defaults", "steps")
OF_IMAGE = ("image", "vcpus", "memory", "gpus", "role", "execution_role")  # defaults for steps without `job_definition`
OF_ALL = ("retries", "timeout", "environment", "queue")  # defaults for every step
STEP_KEYS = (*OF_IMAGE, *OF_ALL, "command", "array", "list", "after", "max_failed", "job_definition")
STEPS_MAX = 100
ARRAY_MAX = 10_000
RETRIES_MAX = 9  # Batch allows ten attempts
GPUS_MAX = 64
DEFAULT_VCPUS, DEFAULT_MEMORY_MIB = "1", 2048


class PipelineStep(NamedTuple):
    """A step as the file describes it, with the file's defaults. None: the file has no value."""

    name: str
    line: int
    image: str | None = None
    job_definition: str | None = None
    command: tuple[str, ...] | None = None
    vcpus: str | None = None
    memory_mib: int | None = None
    gpus: int | None = None
    array: int | None = None
    list_url: str | None = None
    after: tuple[After, ...] = ()
    retries: int | None = None
    timeout_s: int | None = None
    environment: tuple[tuple[str, str], ...] = ()
    queue: str | None = None
    role: str | None = None
    execution_role: str | None = None
    max_failed: MaxFailed | None = None


class QueueRule(NamedTuple):
    match: str  # a pattern for step names, with * and ?
    queue: str


@dataclass(frozen=True, slots=True)
class PipelineQueues:
    """The job queues of a pipeline. `named` has a job queue for each of `cpu`, `gpu` and other short names of the file."""

    named: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[QueueRule, ...] = ()


class Pipeline(NamedTuple):
    file: str
    name: str
    text: str
    parameters: Mapping[str, str]
    queues: PipelineQueues
    steps: tuple[PipelineStep, ...]  # in an order in which each step follows the steps in its `after`

    @property
    def file_hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def step(self, name: str) -> PipelineStep:
        return next(each for each in self.steps if each.name == name)


def read_pipeline(path: Path, given: Mapping[str, str], name: str | None = None) -> Pipeline:
    """Read and check a file. `given` has the values of --parameter, and `name` replaces the name in the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text: a pipeline is a YAML file.") from None
    return parse_pipeline(str(path), text, given, name)


def parse_pipeline(file: str, text: str, given: Mapping[str, str], name: str | None = None) -> Pipeline:
    root, problems = read_yaml(file, text), Problems(file)
    values = _parameters(root, given, problems)
    problems.raise_if_any()
    root = substitute(root, values, problems)
    assert isinstance(root.value, dict)
    top = FileFields(root, "the pipeline", TOP_KEYS, problems)
    found_name = name or top.required("name", read_name) or ""
    if name is not None and not NAME.fullmatch(name):
        raise CliError(
            f"'{name}' is not a name: use at most {NAME_MAX} letters, digits, - and _, and begin with a letter or digit."
        )
    queues = top.get("queues", _queues) or PipelineQueues()
    defaults = top.get("defaults", lambda node, found: mapping_of("defaults", node, found))
    steps = _steps(top, defaults, problems)
    problems.raise_if_any()
    _check_order(steps, problems)
    problems.raise_if_any()
    return Pipeline(file, found_name, text, values, queues, _sorted(steps))


# Parts of the file


def _parameters(root: Node, given: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Return the value of each parameter: from the command line, or else the default in the file."""
    assert isinstance(root.value, dict)
    node = root.value.get("parameters")
    declared = (mapping_of("parameters", node, problems) or {}) if node is not None and node.value is not None else {}
    values: dict[str, str] = {}
    for name, default in declared.items():
        if not VARIABLE.fullmatch(name):
            problems.add(
                default.line, f"'{name}' is not a parameter name. Use letters, digits and _, and begin with a letter or _."
            )
        elif name in given:
            values[name] = given[name]
        elif isinstance(default.value, str):
            values[name] = default.value
        elif default.value is None:
            problems.add(default.line, f"the parameter {name} has no default. Pass it: --parameter {name}=VALUE.")
        else:
            problems.add(default.line, f"the default of the parameter {name} is {default.shown()}. Write it as text.")
    for name in given:
        if name not in declared:
            known = f" The file declares {', '.join(declared)}." if declared else " The file has no `parameters:`."
            raise CliError(
                f"--parameter {name}: {problems.file} does not declare this parameter.{suggestion(name, declared) or known}"
            )
    return values


def _queues(node: Node, problems: Problems) -> PipelineQueues | None:
    found = mapping_of("queues", node, problems)
    if found is None:
        return None
    named: dict[str, str] = {}
    rules: list[QueueRule] = []
    for key, value in found.items():
        if key != "rules":
            if queue := text_of(f"queues.{key}")(value, problems):
                named[key] = queue
        elif not isinstance(value.value, list):
            problems.add(value.line, f"queues.rules is {value.shown()}. Write a list: - {{match: 'recon*', queue: gpu}}.")
        else:
            for each in value.value:
                rule = FileFields(each, "a rule of queues", ("match", "queue"), problems)
                match, queue = rule.required("match", text_of("match")), rule.required("queue", text_of("queue"))
                if match and queue:
                    rules.append(QueueRule(match, queue))
    return PipelineQueues(named, tuple(rules))


def _steps(top: FileFields, defaults: dict[str, Node] | None, problems: Problems) -> list[PipelineStep]:
    FileFields(Node(top.node.line, defaults or {}), "defaults", (*OF_IMAGE, *OF_ALL), problems)
    shared = dict(read_environment(defaults["environment"], problems) or ()) if defaults and "environment" in defaults else {}
    found = top.required("steps", lambda node, problems: mapping_of("steps", node, problems)) or {}
    if len(found) > STEPS_MAX:
        problems.add(top.values["steps"].line, f"the pipeline has {len(found)} steps; at most {STEPS_MAX} are allowed.")
    return [_step(name, node, defaults or {}, shared, problems) for name, node in found.items()]


def _step(name: str, node: Node, defaults: dict[str, Node], shared: dict[str, str], problems: Problems) -> PipelineStep:
    owner = f"step {name}"
    if not NAME.fullmatch(name):
        problems.add(
            node.line,
            f"'{name}' is not a step name. Use at most {NAME_MAX} letters, digits, - and _, and begin with a letter or digit.",
        )
    if not isinstance(node.value, dict):
        problems.add(node.line, f"{owner} is {node.shown()}. Write a mapping with `image:` and `command:`.")
        return PipelineStep(name, node.line)
    has_definition = "job_definition" in node.value
    inherited = {
        key: value
        for key, value in defaults.items()
        if key in OF_ALL or (key in OF_IMAGE and not has_definition)
        if key not in node.value and key != "environment"
    }
    fields = FileFields(Node(node.line, {**inherited, **node.value}), owner, STEP_KEYS, problems)
    environment = shared | dict(fields.get("environment", read_environment) or ())
    step = PipelineStep(
        name=name,
        line=node.line,
        image=fields.get("image", text_of("image")),
        job_definition=fields.get("job_definition", text_of("job_definition")),
        command=fields.get("command", read_command),
        vcpus=fields.get("vcpus", read_vcpus),
        memory_mib=fields.get("memory", read_memory),
        gpus=fields.get("gpus", whole_number("gpus", 0, GPUS_MAX)),
        array=fields.get("array", whole_number("array", 1, ARRAY_MAX)),
        list_url=fields.get("list", read_list),
        after=fields.get("after", read_after) or (),
        retries=fields.get("retries", whole_number("retries", 0, RETRIES_MAX)),
        timeout_s=fields.get("timeout", read_timeout),
        environment=tuple(environment.items()),
        queue=fields.get("queue", text_of("queue")),
        role=fields.get("role", text_of("role")),
        execution_role=fields.get("execution_role", text_of("execution_role")),
        max_failed=fields.get("max_failed", read_max_failed),
    )
    _check_step(step, fields, problems)
    return step


def _check_step(step: PipelineStep, fields: FileFields, problems: Problems) -> None:
    owner, given = fields.owner, fields.values
    if "job_definition" in given:
        for key in ("image", "role", "execution_role"):
            if key in given:
                problems.add(
                    given[key].line, f"{owner} has `job_definition:` and `{key}:`. Remove one: the definition has its own."
                )
    elif "image" not in given:
        problems.add(step.line, f"{owner} has neither `image:` nor `job_definition:`. Add one, or put an image under `defaults:`.")
    if step.max_failed is not None and "array" not in given and "list" not in given:
        problems.add(
            given["max_failed"].line, f"{owner} has `max_failed:`, but is no array. Add `array:` or `list:`, or remove it."
        )


# Order


def _check_order(steps: list[PipelineStep], problems: Problems) -> None:
    """Check that `after` names other steps of the file, and that no step waits for itself."""
    known = {step.name: step for step in steps}
    for step in steps:
        for after in step.after:
            other = known.get(after.step)
            if after.step == step.name:
                problems.add(step.line, f"step {step.name} is after itself. Remove it from `after:`.")
            elif other is None:
                fix = suggestion(after.step, known) or f" The steps are {', '.join(known)}."
                problems.add(step.line, f"step {step.name} is after '{after.step}', which is no step.{fix}")
            elif after.each:
                _check_each(step, other, problems)
    if not problems.found and len(_sorted(steps)) < len(steps):
        done = {step.name for step in _sorted(steps)}
        rest = [step for step in steps if step.name not in done]
        while ends := [step for step in rest if not any(after.step == step.name for other in rest for after in other.after)]:
            rest = [step for step in rest if step not in ends]  # no step waits for these steps, so they are not part of a cycle
        names = ", ".join(step.name for step in rest)
        problems.add(rest[0].line, f"the steps {names} wait for each other. Remove one of them from an `after:`.")


def _check_each(step: PipelineStep, other: PipelineStep, problems: Problems) -> None:
    for each in (step, other):
        if each.array is None and each.list_url is None:
            fix = f"Add `array:` to {each.name}, or write {other.name} without `each`."
            problems.add(step.line, f"step {step.name} is after `each: {other.name}`, but {each.name} is no array. {fix}")
            return
    if step.array and other.array and step.array != other.array:
        sizes = f"{step.name} has {step.array} children and {other.name} has {other.array}"
        problems.add(step.line, f"step {step.name} is after `each: {other.name}`, but {sizes}. Give both the same `array:`.")


def _sorted(steps: list[PipelineStep]) -> tuple[PipelineStep, ...]:
    """Return the steps in an order in which each step follows the steps in its `after`.

    Steps of a cycle, and the steps after them, are left out. If several orders are possible, keep the order of the file.
    """
    done: dict[str, PipelineStep] = {}
    rest = list(steps)
    while rest:
        ready = [step for step in rest if all(after.step in done for after in step.after)]
        if not ready:
            break
        done[ready[0].name] = ready[0]
        rest.remove(ready[0])
    return tuple(done.values())
