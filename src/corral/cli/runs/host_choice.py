"""The hosts on which a run may start: `corral run --host` and `--gpu-model` become placement constraints of its task definition."""

from __future__ import annotations

import re
from typing import Any

from corral.cli.client.endpoint import Endpoint, get_status
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message
from corral.cli.runs.options import RunArguments

_PLAIN = re.compile(r"[\w .:@+-]+")


def placement_constraints(endpoint: Endpoint, options: RunArguments) -> list[dict[str, str]]:
    """Return the constraints of --host and --gpu-model. With --wait-anyway, no host need fulfil them now."""
    wanted = {"--host": options.host, "--gpu-model": options.gpu_model}
    for flag, value in wanted.items():
        if value is not None and not _PLAIN.fullmatch(value):
            raise CliError(f"{flag} {value!r} is not valid: use letters, digits, spaces and the characters . : @ + - _")
    if not any(wanted.values()):
        return []
    if not options.wait_anyway:
        _require_a_host(get_status(endpoint, tasks=1)[0]["hosts"], options.host, options.gpu_model)
    expressions = []
    if options.host:
        expressions.append(f'attribute:corral.host-name == "{options.host}"')
    if options.gpu_model:
        expressions.append(f'attribute:corral.gpu-model =~ "{model_pattern(options.gpu_model)}"')
    return [{"type": "memberOf", "expression": each} for each in expressions]


def model_pattern(model: str) -> str:
    """Return a pattern of all model names that contain this one. If a host has several models, each is compared with it."""
    escaped = "".join(each if each.isalnum() or each in " _-:@" else f"[{each}]" for each in model)
    return f"(?i)[^,]*{escaped}[^,]*"


def _require_a_host(hosts: list[dict[str, Any]], name: str | None, model: str | None) -> None:
    named = [host for host in hosts if name in (None, host["name"])]
    if not named:
        raise CliError(f"there is no host {name}: {_listed('the hosts are', (host['name'] for host in hosts))}.")
    if name and not any(host["connected"] for host in named):
        print_message(f"host {name} does not report: the task starts when it is connected again")
    models = {gpu["model"] for host in named for gpu in host["gpus"]}
    if model and not any(re.fullmatch(model_pattern(model), each) for each in models):
        where = f"host {name} has" if name else "the hosts have"
        raise CliError(f"no host has GPUs of the model {model}: {_listed(where, models)}. --wait-anyway waits for such a host.")


def _listed(what: str, names: Any) -> str:
    return f"{what} {'; '.join(sorted(names)) or 'no GPUs'}"
