"""The schema of a database file: its version, a digest of its text, and the version of Corral that last used the file.

Corral migrates files of earlier versions, and refuses files of later versions. It also refuses a file of the same version whose
schema differs: development between two releases has written it. Otherwise the first statement that names a missing column would
fail, after other statements have changed the file.
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
    """A database has a schema that this version of Corral cannot read."""


class Origin(NamedTuple):
    digest: str  # see `schema_digest`
    corral: str  # the version of Corral, and its commit


@cache
def schema_digest(script: str) -> str:
    """Return a digest of a schema. Comments and white space do not change it."""
    words = (match[2] for match in _TOKEN.finditer(script) if match[2] is not None)
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:32]


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def write_origin(connection: sqlite3.Connection, origin: Origin) -> None:
    connection.execute("DELETE FROM schema_origin")
    connection.execute("INSERT INTO schema_origin VALUES (?, ?)", origin)


def read_origin(connection: sqlite3.Connection) -> Origin | None:
    """Return the origin of a database. Return None for a database of a version of Corral that did not store it."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_origin'").fetchone() is None:
        return None
    found = connection.execute("SELECT digest, corral FROM schema_origin").fetchone()
    return Origin(*found) if found is not None else None


def require_schema(what: str | Path, version: int, found: Origin | None, newest: int, digest: str) -> None:
    """Raise OtherSchema if Corral cannot read a database, or a backup. `what` names it in the message.

    `version` and `found` are its version and its origin. `newest` and `digest` are the version and the digest of this Corral.
    """
    if version > newest:
        raise OtherSchema(
            f"{what} was written by a newer Corral (its schema is {version}, this version knows {newest}). "
            "It was not changed. Use the newer version, or choose another folder with --data."
        )
    if version < newest or (found is not None and found.digest == digest):
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
