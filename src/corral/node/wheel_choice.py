"""Wheels: which of them fit this Python, and their files.

This module imports only the standard library, because the pilot of a lender uses it before it has the dependencies of Corral.
"""

from __future__ import annotations

import io
import platform
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?")
CONDITION = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([0-9][0-9a-z.*+!-]*)")
WHEEL_NAME = re.compile(r"([^-]+)-([^-]+)(?:-[0-9][^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")


class NoWheel(Exception):
    """The content of a file is not a wheel."""


def unpack(name: str, content: bytes, folder: Path) -> None:
    """Write the files of a wheel to a folder, from which this Python can import them. Raise NoWheel."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for each in archive.namelist():
                parts = PurePosixPath(each).parts
                if not parts or parts[0] == "/" or ".." in parts:
                    raise NoWheel(f"{name} is not a wheel: it contains the path {each}.")
                if parts[0].endswith(".data") and parts[1:2] not in (("purelib",), ("platlib",)):
                    continue  # scripts, headers and data
                path = folder.joinpath(*(parts[2:] if parts[0].endswith(".data") else parts))
                if each.endswith("/"):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(each))
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise NoWheel(f"{name} is not a wheel: {error}.") from None


def choose_wheels(requirements: Iterable[str], offered: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the wheels of the requirements that this Python lacks, and the requirements for which no wheel is offered."""
    chosen, lacking = list[str](), list[str]()
    for requirement in requirements:
        parsed = REQUIREMENT.match(requirement)
        if parsed is None or _is_installed(parsed[1], parsed[2]):
            continue
        fitting = [name for name in offered if _fits(name, parsed[1], parsed[2])]
        if fitting:
            chosen.append(fitting[-1])
        else:
            lacking.append(f"{parsed[1]}{parsed[2]}".strip())
    return chosen, lacking


def _is_installed(name: str, conditions: str) -> bool:
    try:
        return satisfies(metadata.version(name), conditions)
    except metadata.PackageNotFoundError:
        return False


def satisfies(version: str, conditions: str) -> bool:
    """Whether a version fulfils conditions such as `>=1.44,<1.45`. Only the numbers of versions are compared."""
    own = _numbers(version)
    for operator, text in CONDITION.findall(conditions):
        other = _numbers(text.rstrip(".*"))
        same = own[: len(other)] == other if text.endswith(".*") else _padded(own, other) == _padded(other, own)
        is_less = _padded(own, other) < _padded(other, own)
        fulfilled = {
            ">=": not is_less, "<": is_less, "<=": is_less or same, ">": not is_less and not same, "==": same, "!=": not same,
            "~=": not is_less and own[: len(other) - 1] == other[:-1],
        }[operator]  # fmt: skip
        if not fulfilled:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _padded(numbers: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return numbers + (0,) * (len(other) - len(numbers))


def _fits(file: str, name: str, conditions: str) -> bool:
    """Whether a wheel is of this dependency, and fits this Python and this platform."""
    parsed = WHEEL_NAME.fullmatch(file)
    if parsed is None or _normal(parsed[1]) != _normal(name) or not satisfies(parsed[2], conditions):
        return False
    minor = sys.version_info.minor
    pythons, abis, platforms = (parsed[at].split(".") for at in (3, 4, 5))
    stable = "abi3" in abis and any(re.fullmatch(r"cp3\d+", each) and int(each[3:]) <= minor for each in pythons)
    own = f"cp3{minor}" in pythons and f"cp3{minor}" in abis
    plain = "py3" in pythons and "none" in abis
    return (own or stable or plain) and any(_fits_platform(each) for each in platforms)


def _fits_platform(tag: str) -> bool:
    if tag == "any":
        return True
    found = re.fullmatch(r"(?:manylinux_(\d+)_(\d+)|manylinux(?:1|2010|2014)|linux)_(\w+)", tag)
    if found is None or found[3] != platform.machine():
        return False
    library, version = platform.libc_ver()
    needed = (int(found[1]), int(found[2])) if found[1] else (0, 0)
    return library == "glibc" and _numbers(version) >= needed


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
