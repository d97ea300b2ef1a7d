"""The environment variables of a run.

The variables can contain secrets, so neither the task definition nor the overrides of RunTask contain them: any client that may
describe task definitions or tasks could read them there. They become an object in a private S3 bucket, which the overrides refer to
as an environment file. Only the root user can read the objects of this bucket. The server reads the object when the run starts, and
deletes it when all runs that refer to it have ended. AWS has no such bucket. There, the variables are overrides, and ECS limits all
overrides of a request to 8,192 characters of JSON.

The lines of an ECS environment file cannot contain newlines. So the object begins with a comment that says that each value is a
JSON string: `NAME="first line\\nsecond line"`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from corral.cli.client.endpoint import Endpoint, is_aws, s3_writer
from corral.cli.printing.errors import CliError

OVERRIDES_MAX = 8_192  # characters of the overrides as JSON text
FILE_MAX_BYTES = 2**20  # of all environment files of a container
BUCKET = "corral-run-environments"  # the server knows this name: model/private_bucket.py
JSON_VALUES = "# corral: values are JSON strings"  # the first line of an object; the server knows it
FIRST_REGION = "us-east-1"  # the only region whose buckets have no location constraint
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_PRIVATE = "NVIDIA_VISIBLE_DEVICES"  # the overrides contain it, because the server reads there which GPUs a container gets
# Variables that are not passed to the task. Some would override the task's own GPUs, the others describe the user's shell.
NOT_PASSED = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "_", "SHLVL", "OLDPWD", "COLUMNS", "LINES"}


def variables(pairs: Iterable[str], files: Iterable[Path], *, inherits: bool) -> dict[str, str]:
    """Return the variables of --env and --env-file, and with `inherits` also those of this process.

    A variable of --env replaces one of a file, and that replaces one of this process.
    """
    values = {name: value for name, value in os.environ.items() if is_passed(name, value)} if inherits else {}
    for file in files:
        values |= read_file(file, os.environ)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not VARIABLE.fullmatch(name) or not (equals or name in os.environ):
            # The message does not contain the value, which may be a secret.
            problem = f"'{name}' is not the name of a variable" if equals else f"'{name}' is not a variable of this shell"
            raise click.BadParameter(f"{problem}: write it as NAME=VALUE, with letters, digits and _ in NAME.", param_hint="--env")
        values[name] = value if equals else os.environ[name]
    for name, value in values.items():
        if not is_text(value):
            raise click.BadParameter(f"the value of {name} is not UTF-8, or contains a NUL character.", param_hint="--env")
    return values


def is_passed(name: str, value: str) -> bool:
    """Whether a variable of this process is passed to the run."""
    if name in NOT_PASSED or name.startswith(("AWS_", "CORRAL_")) or not VARIABLE.fullmatch(name):
        return False
    return is_text(value)


def is_text(value: str) -> bool:
    """Whether a text is UTF-8 without NUL. Python represents other bytes as surrogates, which JSON cannot contain."""
    return "\0" not in value and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def read_file(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read a file of --env-file, in the format of `docker run --env-file`.

    A line is NAME=VALUE, or NAME for a variable of this shell. Quotes and spaces belong to the value. Empty lines and lines that
    begin with # are ignored.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # without the byte order mark of some editors
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise click.BadParameter(f"cannot read {path}: {why}.", param_hint="--env-file") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.removesuffix("\r").partition("=")
        name = name.strip()
        if (not name and not equals) or name.startswith("#"):
            continue
        if not VARIABLE.fullmatch(name):
            # The message does not contain the line, which may be the second line of a secret, such as a private key.
            raise click.BadParameter(
                f"line {number} of {path} is not NAME=VALUE, with letters, digits and _ in NAME. A value has one line.",
                param_hint="--env-file",
            )
        if equals:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
    return found


def name_value_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def with_environment(endpoint: Endpoint, override: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Add the variables to the override of a container: as a private object, or on AWS as `environment`."""
    shown = values if is_aws(endpoint) else {name: value for name, value in values.items() if name == NOT_PRIVATE}
    private = {name: value for name, value in values.items() if name not in shown}
    if shown:
        override = {**override, "environment": name_value_pairs(shown)}
    if private:
        override = {**override, "environmentFiles": [{"type": "s3", "value": _upload(endpoint, file_text(private))}]}
    elif shown and (length := overrides_length(override)) > OVERRIDES_MAX:
        raise CliError(
            f"the command and its variables have {length} characters as JSON, and ECS accepts {OVERRIDES_MAX}: "
            "store the variables in an S3 object and name it in environmentFiles of a task definition."
        )
    return override


def overrides_length(override: Mapping[str, Any]) -> int:
    """Return the number of characters that ECS counts."""
    return len(json.dumps({"containerOverrides": [override]}, ensure_ascii=False, separators=(",", ":")))


def file_text(values: Mapping[str, str]) -> str:
    """Return the content of the environment file. It consists of ASCII characters."""
    return "".join([f"{JSON_VALUES}\n", *(f"{name}={json.dumps(value)}\n" for name, value in values.items())])


def _upload(endpoint: Endpoint, text: str) -> str:
    """Store the file in the private bucket, and return its ARN. Create the bucket if it does not exist."""
    if len(text) > FILE_MAX_BYTES:
        raise CliError(
            f"the variables have {len(text)} bytes, but a run can have at most {FILE_MAX_BYTES}: put large values into files."
        )
    s3, key = s3_writer(endpoint), f"{os.urandom(16).hex()}.env"
    for _ in range(2):
        try:
            s3.put_object(Bucket=BUCKET, Key=key, Body=text.encode())
            break
        except s3.exceptions.NoSuchBucket:
            region = s3.meta.region_name
            elsewhere = {} if region == FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            with suppress(s3.exceptions.BucketAlreadyOwnedByYou):  # another `corral run` may have just created it
                s3.create_bucket(Bucket=BUCKET, **elsewhere)
    return f"arn:aws:s3:::{BUCKET}/{key}"
