"""What a table lacks: errors, members and second calls that no test has seen, and that docs/services.md does not explain."""

from __future__ import annotations

from answers.contract import documented_errors, operations, reachable
from answers.decisions import Differences
from answers.tables import NEVER, Table


def gaps(service: str, table: Table, listed: Differences) -> list[str]:
    """What is neither seen nor explained, and what is explained but was seen."""
    found = []
    for operation in operations(service):
        for error in sorted(set(documented_errors(service, operation).values())):
            seen = table.errors.get(operation, {}).get(error, NEVER)
            reason = listed.find("errors", error, operation)
            if seen == NEVER and reason is None:
                found.append(f"error {operation}: {error} is neither tested nor explained")
            elif seen != NEVER and reason is not None and reason.excludes(error, operation):
                found.append(f"error {operation}: {error} is explained ({reason.reason}), but {seen} receives it")
        if operation not in table.seconds and listed.find("second", operation) is None:
            found.append(f"second {operation} is neither tested nor explained")
    for member in sorted(reachable(service, table.given())):
        seen, name = table.results.get(member, NEVER), f"{member.structure}.{member.name}"
        reason = listed.find("members", name)
        if seen == NEVER and reason is None:
            found.append(f"member {name} is neither tested nor explained")
        elif seen != NEVER and reason is not None and reason.excludes(name):
            found.append(f"member {name} is explained ({reason.reason}), but it was {seen} there")
    return found


def unknown(service: str, table: Table) -> list[str]:
    """Rows of the table about what the model does not have."""
    served = set(operations(service))
    stale = [f"operation {name}" for name in (*table.errors, *table.seconds) if name not in served]
    stale += [
        f"error {operation}: {error}"
        for operation, errors in table.errors.items()
        if operation in served
        for error in errors
        if error not in documented_errors(service, operation).values()
    ]
    known = set(reachable(service, table.given()))
    return stale + [f"member {member.structure}.{member.name}" for member in table.results if member not in known]
