"""`corral gpu` ends the fault of a GPU that works again, and makes simulated GPUs fail."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_text
from corral.cli.runs.completion import complete_gpus


@click.group(short_help="Let a failed GPU be used again.")
def gpu() -> None:
    """Let a failed GPU be used again, or make a simulated GPU fail.

    GPU is an index, an id (GPU-…) or a prefix of an id.
    """


@gpu.command(short_help="Let tasks use a failed GPU again.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the GPU and its fault as JSON.")
@click.argument("gpu", shell_complete=complete_gpus)
def heal(data: DataFolder, as_json: bool, gpu: str) -> None:
    """Let tasks use a GPU again, for example after `nvidia-smi --gpu-reset`.

    A fault that the driver still reports remains.
    """
    found, changed = _change(data, gpu, {})
    if as_json:
        print_json(changed)
    elif changed["fault"] is None:
        print_text(f"{_name(found)} is free for tasks again" if not found.get("task") else f"{_name(found)} is healthy")
    if changed["fault"] is not None:
        raise CliError(f"{_name(found)} has not recovered: {changed['fault']}")


@gpu.command(short_help="Make a simulated GPU fail.")
@data_option
@click.option(
    "--xid",
    type=click.IntRange(1, 100_000),
    default=79,
    show_default=True,
    help="The driver's number of the error (Xid).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the GPU and its fault as JSON.")
@click.argument("gpu", shell_complete=complete_gpus)
def fail(data: DataFolder, xid: int, as_json: bool, gpu: str) -> None:
    """Make a simulated GPU fail, to see what happens to its task and its instance.

    Xids that are errors of the application, such as 13 or 31, change nothing.
    """
    found, changed = _change(data, gpu, {"xid": xid})
    if as_json:
        print_json(changed)
    elif changed["fault"] is None:
        print_text(f"Xid {xid} does not set a GPU aside: {_name(found)} stays in use")
    else:
        print_text(f"{_name(found)} failed: {changed['fault']}")


def _change(data: DataFolder, given: str, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral gpu` changes the GPUs of a Corral server. On AWS, replace the instance of a failed GPU.")
    found = _choose(call(endpoint, "DescribeGpus")[0]["gpus"], given)
    return found, call(endpoint, "SetGpuFault", {"gpu": found["id"], **wanted})[0]


def _choose(gpus: list[dict[str, Any]], given: str) -> dict[str, Any]:
    if given.isdecimal() and len(given) <= 3:
        matches = [each for each in gpus if each["index"] == int(given)]
    else:
        prefix = given if given.upper().startswith("GPU-") else f"GPU-{given}"
        matches = [each for each in gpus if each["id"].lower().startswith(prefix.lower())]
    if len(matches) != 1:
        names = ", ".join(_name(each) for each in gpus) or "none"
        raise CliError(f"{'no GPU matches' if not matches else 'several GPUs match'} {given}. The GPUs are: {names}.")
    return matches[0]


def _name(gpu: dict[str, Any]) -> str:
    return f"GPU {gpu['index']} ({gpu['id']})"
