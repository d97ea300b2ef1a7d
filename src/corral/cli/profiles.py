"""AWS profiles: one section put into files that belong to the user.

The files are edited as lines: comments, order, blank lines and everything of other profiles stay byte for byte, which no
INI library promises.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from corral.cli.refusals import Failed
from corral.cli.where import Where

MARK = "# written by `corral env --profile`\n"
_HEADER = re.compile(r"\s*\[\s*(?P<name>[^]]*?)\s*\]")
_KEY = re.compile(r"(?P<key>[^\s=:#;][^=:]*?)\s*[=:]\s*(?P<value>.*?)\s*$")

Lines = list[str]


def write(where: Where, name: str, config: Path, credentials: Path, *, force: bool) -> None:
    """Make or renew the profile. One of that name that is somebody else's is left alone, in both files."""
    assert where.endpoint_url and where.region and where.access_key and where.secret_key
    section = "default" if name == "default" else f"profile {name}"
    in_config, in_credentials = _lines(config), _lines(credentials)
    ours = _is_ours(in_config, section, {"endpoint_url": where.endpoint_url})
    ours_too = _is_ours(in_credentials, name, {"aws_access_key_id": where.access_key})
    if not force and not (ours and ours_too):
        holder = config if not ours else credentials
        raise Failed(f"{holder} has a profile {name} that is not Corral's; it was left as it is. Choose another name, or --force.")
    keys = {"aws_access_key_id": where.access_key, "aws_secret_access_key": where.secret_key}
    place = {"endpoint_url": where.endpoint_url, "region": where.region}
    _replace(credentials, with_section(in_credentials, name, keys, keep=ours_too), mode=0o600)
    _replace(config, with_section(in_config, section, place, keep=ours), mode=None)


def with_section(lines: Lines, name: str, values: Mapping[str, str], *, keep: bool) -> Lines:
    """These lines with that section holding these values; `keep` leaves its other lines where they are."""
    fresh = [f"{key} = {value}\n" for key, value in values.items()]
    span = _span(lines, name)
    if span is None:
        before = [*lines[:-1], lines[-1] if lines[-1].endswith("\n") else lines[-1] + "\n", "\n"] if lines else []
        return [*before, f"[{name}]\n", MARK, *fresh]
    start, end = span
    others = [line for line in lines[start + 1 : end] if line != MARK and _key(line) not in values] if keep else []
    return [*lines[: start + 1], MARK, *fresh, *others, *lines[end:]]


def _is_ours(lines: Lines, name: str, proof: Mapping[str, str]) -> bool:
    """No such section is nobody's, and so may be ours."""
    span = _span(lines, name)
    if span is None:
        return True
    body = lines[span[0] + 1 : span[1]]
    found = {match["key"]: match["value"] for line in body if (match := _KEY.match(line))}
    return MARK in body or all(found.get(key) == value for key, value in proof.items())


def _span(lines: Lines, name: str) -> tuple[int, int] | None:
    """(its header's line, the line after its last); blank lines and comments above the next header are the next one's."""
    headers = [at for at, line in enumerate(lines) if _HEADER.match(line)]
    for at, following in zip(headers, [*headers[1:], len(lines)]):
        if _section(lines[at]) == name:
            end = following
            while following < len(lines) and end > at + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip()[0] in "#;"):
                end -= 1
            return at, end
    return None


def _section(header: str) -> str:
    """`[profile "x"]` and `[ profile x ]` are `profile x`, as botocore reads them."""
    match = _HEADER.match(header)
    assert match is not None
    return " ".join(word.strip("\"'") for word in match["name"].split())


def _key(line: str) -> str | None:
    match = _KEY.match(line)
    return match["key"] if match else None


def _lines(path: Path) -> Lines:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape").splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _replace(path: Path, lines: Lines, mode: int | None) -> None:
    """All or nothing; through a link, to what it points to."""
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
