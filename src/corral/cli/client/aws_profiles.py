"""Writes an AWS profile into the user's AWS configuration files.

The files are edited as lines, so that comments, order, blank lines and other profiles do not change. No INI library guarantees
this.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from corral.cli.client.address import Endpoint
from corral.cli.printing.errors import CliError

CONNECTED = "corral"  # the profile that `corral connect` writes, if no other is named
MARK = "# written by `corral env --profile`\n"
_HEADER = re.compile(r"\s*\[\s*(?P<name>[^]]*?)\s*\]")
_KEY = re.compile(r"(?P<key>[^\s=:#;][^=:]*?)\s*[=:]\s*(?P<value>.*?)\s*$")

FileLines = list[str]


def files() -> tuple[Path, Path]:
    """Return the paths of the user's AWS configuration file and credentials file."""
    config = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    return config, Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()


def write(endpoint: Endpoint, name: str, config: Path, credentials: Path, *, force: bool) -> None:
    """Create or update the profile. Raise a CliError if the profile exists and Corral did not write it, unless `force` is set."""
    assert endpoint.endpoint_url and endpoint.region and endpoint.access_key and endpoint.secret_key
    section = _config_section(name)
    in_config, in_credentials = _lines(config), _lines(credentials)
    config_is_ours = _is_ours(in_config, section, {"endpoint_url": endpoint.endpoint_url})
    credentials_are_ours = _is_ours(in_credentials, name, {"aws_access_key_id": endpoint.access_key})
    if not force and not (config_is_ours and credentials_are_ours):
        path = config if not config_is_ours else credentials
        raise CliError(f"{path} has a profile {name} that Corral did not write. Choose another name, or overwrite it with --force.")
    keys = {"aws_access_key_id": endpoint.access_key, "aws_secret_access_key": endpoint.secret_key}
    settings = {"endpoint_url": endpoint.endpoint_url, "region": endpoint.region}
    if endpoint.ca_bundle:
        settings["ca_bundle"] = endpoint.ca_bundle
    _replace(credentials, with_section(in_credentials, name, keys, keep=credentials_are_ours), mode=0o600)
    _replace(config, with_section(in_config, section, settings, keep=config_is_ours), mode=None)


def check_free(name: str, config: Path, credentials: Path, *, force: bool) -> None:
    """Raise a CliError if the profile exists and Corral did not write it, unless `force` is set."""
    for path, section in ((config, _config_section(name)), (credentials, name)):
        if not force and not _is_ours(_lines(path), section, {"": ""}):
            raise CliError(
                f"{path} has a profile {name} that Corral did not write. Choose another one with --profile, or use --force."
            )


def read(name: str, config: Path, credentials: Path) -> dict[str, str] | None:
    """Return the settings and the keys of a profile that Corral has written. Return None if there is none."""
    settings, keys = _body(_lines(config), _config_section(name)), _body(_lines(credentials), name)
    if MARK not in settings or MARK not in keys:
        return None
    return {match["key"]: match["value"] for line in (*settings, *keys) if (match := _KEY.match(line))}


def names(access_key: str, config: Path, credentials: Path) -> list[str]:
    """Return the profiles with this access key that `write` has written."""
    in_config, in_credentials = _lines(config), _lines(credentials)
    found = [_section(line) for line in in_credentials if _HEADER.match(line)]
    return [
        name
        for name in found
        if MARK in _body(in_credentials, name)
        and MARK in _body(in_config, _config_section(name))
        and f"aws_access_key_id = {access_key}\n" in _body(in_credentials, name)
    ]


def remove(name: str, config: Path, credentials: Path) -> None:
    """Delete a profile from both files. Delete a file that contains nothing else."""
    for path, section in ((credentials, name), (config, _config_section(name))):
        left = _without_section(_lines(path), section)
        if left:
            _replace(path, left, mode=None)
        else:
            path.resolve().unlink()


def _without_section(lines: FileLines, name: str) -> FileLines:
    span = _span(lines, name)
    if span is None:
        return lines
    start, end = span
    while start > 0 and not lines[start - 1].strip():  # the blank line that `with_section` has written above the section
        start -= 1
    return [*lines[:start], *lines[end:]]


def _body(lines: FileLines, name: str) -> FileLines:
    span = _span(lines, name)
    return lines[span[0] + 1 : span[1]] if span is not None else []


def _config_section(name: str) -> str:
    return "default" if name == "default" else f"profile {name}"


def with_section(lines: FileLines, name: str, values: Mapping[str, str], *, keep: bool) -> FileLines:
    """Return the lines with these values in a section. With `keep`, do not remove the other lines of the section."""
    fresh = [f"{key} = {value}\n" for key, value in values.items()]
    span = _span(lines, name)
    if span is None:
        before = [*lines[:-1], lines[-1] if lines[-1].endswith("\n") else lines[-1] + "\n", "\n"] if lines else []
        return [*before, f"[{name}]\n", MARK, *fresh]
    start, end = span
    others = [line for line in lines[start + 1 : end] if line != MARK and _key(line) not in values] if keep else []
    return [*lines[: start + 1], MARK, *fresh, *others, *lines[end:]]


def _is_ours(lines: FileLines, name: str, proof: Mapping[str, str]) -> bool:
    """Return True if Corral may write the section: it does not exist, has the comment `MARK`, or has all values of `proof`."""
    span = _span(lines, name)
    if span is None:
        return True
    body = lines[span[0] + 1 : span[1]]
    found = {match["key"]: match["value"] for line in body if (match := _KEY.match(line))}
    return MARK in body or all(found.get(key) == value for key, value in proof.items())


def _span(lines: FileLines, name: str) -> tuple[int, int] | None:
    """Return the range of a section: the index of its header, and the index after its last line.

    Blank lines and comments above the next header do not belong to the section. Return None if the section does not exist.
    """
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    for at, following in zip(headers, [*headers[1:], len(lines)]):
        if _section(lines[at]) == name:
            end = following
            while following < len(lines) and end > at + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip()[0] in "#;"):
                end -= 1
            return at, end
    return None


def _section(header: str) -> str:
    """Return the name of a section. As in botocore, the name of `[profile "x"]` and of `[ profile x ]` is `profile x`."""
    match = _HEADER.match(header)
    assert match is not None
    return " ".join(word.strip("\"'") for word in match["name"].split())


def _key(line: str) -> str | None:
    match = _KEY.match(line)
    return match["key"] if match else None


def _lines(path: Path) -> FileLines:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape").splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _replace(path: Path, lines: FileLines, mode: int | None) -> None:
    """Replace a file atomically. If the path is a symbolic link, replace the file that it points to.

    If `mode` is None, the file keeps its mode. A new file then gets 0600.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    descriptor, fresh = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write("".join(lines).encode("utf-8", "surrogateescape"))
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(fresh, target)
    except BaseException:
        os.unlink(fresh)
        raise
