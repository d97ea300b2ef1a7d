"""Pipeline files: what is read, and the exact problem of each wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.cli.pipelines.fields import After, MaxFailed
from corral.cli.pipelines.file import Pipeline, parse_pipeline, read_pipeline
from corral.cli.pipelines.yaml_reader import PipelineFileError
from corral.cli.printing.errors import CliError

ROOT = Path(__file__).parents[2]
WHOLE = """
name: recon
parameters: {subject: s01, size: 100}
queues:
  cpu: small
  gpu: large
  rules: [{match: 'calib*', queue: cpu}]
defaults:
  image: lab/recon:1
  environment: {MODE: fast, LEVEL: 010}
steps:
  prepare:
    command: prepare --subject {{subject}} && echo '{{.Go}}'
    array: '{{ size }}'
    max_failed: 5%
  recon:
    command: [python, recon.py, '{{subject}}']
    list: s3://data/commands.txt
    vcpus: 4
    memory: 1.5g
    gpus: 2
    retries: 2
    timeout: 1h30m
    role: arn:aws:iam::123456789012:role/job
    environment: {LEVEL: yes}
    after: [{each: prepare}, calibrate]
  calibrate:
    job_definition: calibration:3
    queue: gpu
    after: prepare
"""


def parse(text: str, **given: str) -> Pipeline:
    return parse_pipeline("p.yaml", text, given)


def problems(text: str, **given: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        parse(text, **given)
    return caught.value.lines()


def step(lines: str, top: str = "") -> str:
    indented = "".join(f"    {line}\n" for line in lines.strip().splitlines())
    return f"name: p\n{top}steps:\n  one:\n    image: i\n{indented}"


def test_a_file_with_every_key() -> None:
    found = parse(WHOLE, subject="s02")
    assert found.name == "recon" and found.parameters == {"subject": "s02", "size": "100"}
    assert [each.name for each in found.steps] == ["prepare", "calibrate", "recon"]  # each step follows those in its `after`
    prepare, recon = found.step("prepare"), found.step("recon")
    assert prepare.command == ("/bin/sh", "-c", "prepare --subject s02 && echo '{{.Go}}'")
    assert (prepare.array, prepare.max_failed) == (100, MaxFailed(percent=5.0))
    assert prepare.environment == (("MODE", "fast"), ("LEVEL", "010"))  # the text of the file, not a number
    assert recon.command == ("python", "recon.py", "s02") and recon.list_url == "s3://data/commands.txt"
    assert (recon.vcpus, recon.memory_mib, recon.gpus, recon.retries, recon.timeout_s) == ("4", 1536, 2, 2, 5400)
    assert recon.environment == (("MODE", "fast"), ("LEVEL", "yes"))
    assert recon.after == (After("prepare", each=True), After("calibrate"))
    assert found.step("calibrate").image is None and found.step("calibrate").queue == "gpu"
    assert found.queues.named == {"cpu": "small", "gpu": "large"} and found.queues.rules[0].match == "calib*"


def test_the_name_on_the_command_line_replaces_that_of_the_file() -> None:
    assert parse_pipeline("p.yaml", WHOLE, {}, "other").name == "other"
    with pytest.raises(CliError, match="'a b' is not a name: use at most 50 letters"):
        parse_pipeline("p.yaml", WHOLE, {}, "a b")


def test_the_example_is_a_valid_pipeline() -> None:
    assert len(read_pipeline(ROOT / "examples" / "pipeline" / "pipeline.yaml", {}).steps) == 4


@pytest.mark.parametrize("failed, size, allowed", [("5%", 100, 5), ("5%", 10, 0), ("7%", 100, 7), ("5.1%", 1000, 51), ("3", 2, 2)])
def test_a_tolerance(failed: str, size: int, allowed: int) -> None:
    found = parse(step(f"array: {size}\nmax_failed: {failed}")).steps[0].max_failed
    assert found is not None and found.allowed(size) == allowed and str(found) == failed


@pytest.mark.parametrize(
    "lines, problem",
    [
        ("memroy: 2g", "step one has an unknown key 'memroy'. Did you mean memory?"),
        ("xyz: 2g", "step one has an unknown key 'xyz'. Known keys: image, vcpus, memory, "),
        ("memory: 2q", "memory is '2q'. Write 512m, 2g or a number of MiB, at least 4m."),
        ("memory: 1", "memory is '1'. Write 512m"),
        ("memory: [2g]", "memory is a list. Write 512m"),
        ("memory:", "step one: memory is empty. Write a value, or remove the key."),
        ("vcpus: 1.5", "vcpus is '1.5'. It must be a whole number from 1 to 1,024; on Fargate also 0.25 or 0.5."),
        ("gpus: -1", "gpus is '-1'. It must be a whole number from 0 to 64."),
        ("array: 0", "array is '0'. It must be a whole number from 1 to 10,000."),
        ("array: 10001", "array is '10001'. It must be a whole number from 1 to 10,000."),
        ("retries: 10", "retries is '10'. It must be a whole number from 0 to 9."),
        ("timeout: 30s", "timeout is '30s'. Write it as 90m, 4h or 1h30m; Batch requires at least 60s."),
        ("timeout: soon", "timeout is 'soon'. Write it as 90m"),
        ("command: {a: b}", "command is a mapping. Write a text, which runs in /bin/sh, or a list such as [python, train.py]."),
        ("command: []", "command is a list. Write a text"),
        ("list: /tmp/list", "list is '/tmp/list'. It must be an object in S3 with one item per line: s3://bucket/commands.txt."),
        ("array: 2\nmax_failed: 101%", "max_failed is '101%'. Write a number of children, such as 3, or a percentage, such as 5%."),
        ("max_failed: 1", "step one has `max_failed:`, but is no array. Add `array:` or `list:`, or remove it."),
        ("environment: [A]", "environment is a list. Write a mapping: NAME: value."),
        ("environment: {a-b: 1}", "'a-b' is not the name of a variable. Use letters, digits and _"),
        ("environment: {ARRAY_SIZE: 1}", "the variable ARRAY_SIZE is set by Batch or by `corral pipeline`. Choose another name."),
        ("after: one", "step one is after itself. Remove it from `after:`."),
        ("after: tow", "step one is after 'tow', which is no step. The steps are one."),
        ("after: onee", "step one is after 'onee', which is no step. Did you mean one?"),
        ("after: [{all: one}]", "after contains a mapping. Write the names of steps: [prepare, {each: recon}]."),
        ("after: [one, one]", "after names the step one twice. Remove one of them."),
        ("job_definition: d", "step one has `job_definition:` and `image:`. Remove one: the definition has its own."),
        ("command: x {{nothing}}", "'{{nothing}}' names no parameter. Declare it under `parameters:`."),
        ("gpus: *other", "'*other' is an alias, which pipelines do not have. Put shared values under `defaults:`."),
        ("gpus: 1\ngpus: 2", "the key 'gpus' appears twice. Remove one of them."),
    ],
)
def test_a_wrong_value_names_file_line_rule_and_fix(lines: str, problem: str) -> None:
    found = problems(step(lines))
    place, _, text = found[0].partition(": ")
    assert text.startswith(problem), found
    assert place.startswith("p.yaml:") and int(place.split(":")[1]) in (3, 4, 5, 6)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "p.yaml:1: the file contains an empty value, not a mapping with `name:` and `steps:`."),
        ("- a", "p.yaml:1: the file contains a list, not a mapping with `name:` and `steps:`."),
        ("a: b: c", "p.yaml:1: this is not valid YAML: mapping values are not allowed in this context."),
        ("name: p\n---\nname: q", "p.yaml:2: a second document begins here. Write one pipeline per file."),
        ("name: p", "p.yaml:1: the pipeline has no `steps:`. Add it."),
        ("steps: {a: {image: i}}", "p.yaml:1: the pipeline has no `name:`. Add it."),
        ("name: a b\nsteps: {a: {image: i}}", "p.yaml:1: name is 'a b'. A name has at most 50 letters, digits, - and _, and"),
        ("name: p\nstep: {}\nsteps: {a: {image: i}}", "p.yaml:2: the pipeline has an unknown key 'step'. Did you mean steps?"),
        ("name: p\nsteps: [{image: i}]", "p.yaml:2: steps is a list. Write a mapping."),
        ("name: p\nsteps:\n  a: {}", "p.yaml:3: step a has neither `image:` nor `job_definition:`. Add one, or put an image under"),
        (
            "name: p\nsteps:\n  a.b: {image: i}",
            "p.yaml:3: 'a.b' is not a step name. Use at most 50 letters, digits, - and _, and begin with a letter or digit.",
        ),
        ("name: p\ndefaults: {gpu: 1}\nsteps: {a: {image: i}}", "p.yaml:2: defaults has an unknown key 'gpu'. Did you mean gpus?"),
        ("name: p\nqueues: {rules: [{match: a}]}\nsteps: {a: {image: i}}", "p.yaml:2: a rule of queues has no `queue:`. Add it."),
        (
            "name: p\nparameters:\n  size:\nsteps: {a: {image: i}}",
            "p.yaml:3: the parameter size has no default. Pass it: --parameter",
        ),
        ("[" * 40, "p.yaml:1: the file has values at a depth of more than 20. A pipeline cannot be that large."),
    ],
)
def test_a_wrong_file(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def test_steps_that_wait_for_each_other() -> None:
    text = "name: p\ndefaults: {image: i}\nsteps:\n  a: {after: c}\n  b: {after: a}\n  c: {after: b}\n  d: {}\n  e: {after: c}\n"
    assert problems(text) == ["p.yaml:4: the steps a, b, c wait for each other. Remove one of them from an `after:`."]


def test_each_needs_two_arrays_of_the_same_size() -> None:
    start = "name: p\ndefaults: {image: i}\nsteps:\n  a: {array: 3}\n"
    rest = "Add `array:` to b, or write a without `each`."
    assert problems(start + "  b: {after: {each: a}}") == [f"p.yaml:5: step b is after `each: a`, but b is no array. {rest}"]
    assert problems(start + "  b: {array: 4, after: {each: a}}")[0].endswith(
        "b has 4 children and a has 3. Give both the same `array:`."
    )


def test_all_problems_are_reported_in_the_order_of_the_file() -> None:
    found = problems("name: p\ndefaults: {memory: 2q}\nsteps:\n  a: {image: i, gpus: x}\n  b: {image: i, vcpus: y}")
    assert [line.split(":")[1] for line in found] == ["2", "4", "5"]  # the wrong default is reported once


def test_an_undeclared_parameter() -> None:
    with pytest.raises(CliError, match=r"--parameter sise: p\.yaml does not declare this parameter\. Did you mean size\?"):
        parse("name: p\nparameters: {size: 1}\nsteps: {a: {image: i}}", sise="2")
