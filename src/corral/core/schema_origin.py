"""The schema of a database file: a digest of its text, and the version of Corral that last used the file.

Until there are migrations, a file whose schema differs from the schema of the code is refused. Otherwise the first statement that
names a missing column would fail, after other statements have changed the file.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import NamedTuple

from corral.core.errors import Refused
from corral.version import full_version

ORIGIN_SCHEMA = """
CREATE TABLE schema_origin (digest TEXT NOT NULL, corral TEXT NOT NULL);
"""

# A comment, a quoted text or name, a word, or another character.
_TOKEN = re.compile(r"(--[^\n]*|/\*.*?\*/)|('(?:[^']|'')*'|\"[^\"]*\"|\w+|\S)", re.DOTALL)


class OtherSchema(Refused):
    """A database has another schema than the one that this version of Corral uses."""


class Origin(NamedTuple):
    digest: str  # see `schema_digest`
    corral: str  # the version of Corral, and its commit


@cache
def schema_digest(script: str) -> str:
    """Return a digest of a schema. Comments and white space do not change it."""
    words = (match[2] for match in _TOKEN.finditer(script) if match[2] is not None)
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]


def write_origin(connection: sqlite3.Connection, origin: Origin) -> None:
    connection.execute("DELETE FROM schema_origin")
    connection.execute("INSERT INTO schema_origin VALUES (?, ?)", origin)


def read_origin(connection: sqlite3.Connection) -> Origin | None:
    """Return the origin of a database. Return None for a database of a version of Corral that did not store it."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_origin'").fetchone() is None:
        return None
    found = connection.execute("SELECT digest, corral FROM schema_origin").fetchone()
    return Origin(*found) if found is not None else None


def require_schema(what: str | Path, found: Origin | None, digest: str) -> None:
    """Raise OtherSchema if a database, or a backup, has another schema. `what` names it in the message."""
    if found is not None and found.digest == digest:
        return
    kept = "It was not changed, and this version cannot convert it"
    if found is not None and found.corral == full_version():
        raise OtherSchema(
            f"{what} was written by this version, {found.corral}, with other local changes: its database schema differs. {kept}. "
            "Undo the changes of the schema, or choose another folder with --data."
        )
    theirs, use = "an earlier commit of Corral", "the version of Corral that wrote it"
    if found is not None:
        commit = re.search(r"commit (\w+)", found.corral)
        theirs, use = f"Corral {found.corral}", f"that version (`git checkout {commit[1]}`)" if commit else "that version"
    raise OtherSchema(
        f"{what} was written by {theirs}, whose database schema differs from that of this version, {full_version()}. {kept}. "
        f"Use {use}, or choose another folder with --data."
    )
