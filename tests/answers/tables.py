"""The table of a service: what each operation answers, and where that was seen.

    [operations.CreateJobQueue]
    second = "ClientException"                       what another call with the same request does
    errors.ClientException = "clients/test_x.py"     a test that receives it
    errors.ServerException = "never"                 docs/services.md says why
    others = ["ValidationException"]                 received, but not documented for this operation

    [results.JobDetail]                              a structure; for a whole result, the operation
    always = ["jobId"]
    sometimes = ["stoppedAt"]
    never = ["isCancelled"]                          the same

`never` leaves out what can only be in members that are never there.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any

from answers.contract import Member, documented_errors, members, operations, reachable
from answers.recorder import Record

FOLDER = Path(__file__).with_name("tables")
NEVER = "never"
READS = ("Describe", "Get", "List", "Head", "BatchGet", "BatchCheck", "Simulate", "Validate", "Test", "Discover")
WIDTH = 130


@dataclass
class Table:
    seconds: dict[str, str] = field(default_factory=dict)  # operation → outcome
    errors: dict[str, dict[str, str]] = field(default_factory=dict)  # operation → error → test file, or `never`
    others: dict[str, list[str]] = field(default_factory=dict)
    results: dict[Member, str] = field(default_factory=dict)  # always, sometimes or never

    def given(self) -> set[Member]:
        return {member for member, when in self.results.items() if when != NEVER}


def read_table(service: str) -> Table:
    path, table = FOLDER / f"{service}.toml", Table()
    document: dict[str, Any] = tomllib.loads(path.read_text()) if path.exists() else {}
    for operation, row in document.get("operations", {}).items():
        table.errors[operation] = row.get("errors", {})
        table.others[operation] = row.get("others", [])
        if "second" in row:
            table.seconds[operation] = row["second"]
    for structure, row in document.get("results", {}).items():
        for when, names in row.items():
            table.results |= {Member(structure, name): when for name in names}
    return table


def recorded_table(service: str, record: Record, before: Table) -> Table:
    """The table of what was recorded, and of what `before` has of earlier records."""
    table = Table(seconds=dict(before.seconds))
    table.seconds |= {operation: outcome for (name, operation), outcome in record.seconds.items() if name == service}
    for operation in operations(service):
        documented = documented_errors(service, operation)
        files: dict[str, set[str]] = {}
        others = set(before.others.get(operation, ()))
        for (name, each, code), found in record.errors.items():
            if (name, each) == (service, operation) and code in documented:
                files.setdefault(documented[code], set()).update(found)
            elif (name, each) == (service, operation):
                others.add(code)
        earlier = {error: file for error, file in before.errors.get(operation, {}).items() if file != NEVER}
        received = {error: min(found) for error, found in files.items()}
        table.errors[operation] = dict.fromkeys(set(documented.values()), NEVER) | received | earlier
        table.others[operation] = sorted(others)
    seen = dict[Member, str]()
    for member in members(service):
        _, filled, absent = record.members.get((service, *member), (0, 0, 0))
        earlier_when = before.results.get(member, NEVER)
        if filled:
            seen[member] = "sometimes" if absent or earlier_when == "sometimes" else "always"
        elif earlier_when != NEVER:
            seen[member] = "sometimes" if absent else earlier_when
    for member in reachable(service, set(seen)):
        table.results[member] = seen.get(member, NEVER)
    return table


def write_table(service: str, table: Table) -> None:
    lines = []
    for operation in operations(service):
        lines.append(f"[operations.{operation}]")
        if operation in table.seconds:
            lines.append(f'second = "{table.seconds[operation]}"')
        lines += [f'errors.{error} = "{file}"' for error, file in sorted(table.errors[operation].items())]
        if table.others[operation]:
            lines += _list("others", table.others[operation])
        lines.append("")
    structures: dict[str, dict[str, list[str]]] = {}
    for member, when in table.results.items():
        structures.setdefault(member.structure, {}).setdefault(when, []).append(member.name)
    for structure, row in sorted(structures.items()):
        lines.append(f"[results.{structure}]")
        for when in ("always", "sometimes", NEVER):
            if when in row:
                lines += _list(when, sorted(row[when]))
        lines.append("")
    (FOLDER / f"{service}.toml").write_text("\n".join(lines))


def _list(key: str, names: list[str]) -> list[str]:
    text = ", ".join(f'"{name}"' for name in names)
    if len(text) + len(key) + 5 <= WIDTH:
        return [f"{key} = [{text}]"]
    return [f"{key} = [", *(f"  {line}" for line in wrap(text, WIDTH - 2, break_long_words=False)), "]"]


def is_read(operation: str) -> bool:
    return operation.startswith(READS)
