"""Private environments: S3 objects with the environment variables of `corral run`, which are deleted when no task needs them.

See `model/private_environment.py`. A task that replaces a failed task refers to the same object as the failed task. An object is
deleted a minute after the end of the last task that refers to it, so Corral must add the new task within this minute.

A session is the caller of a request that is signed with temporary credentials, for example the program of a task. A task can read
the variables of each object to which it refers. So a session may launch a task that refers to an object only if the session itself
has uploaded the object.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.private_environment import UNUSED_S, UPLOADED_S, private_objects
from corral.model.task import Task
from corral.store import Store


def foreign_object(tx: Tx[Store], overrides: dict[str, Any], caller: Caller) -> str | None:
    """Return the key of an object to which the overrides of a session refer, and which another caller has uploaded."""
    keys = private_objects(overrides) if not caller.is_root else ()
    return next((key for key in keys if tx.store.private_environments.uploader(key) != _uploader(caller)), None)


def _uploader(caller: Caller) -> str:
    """Return the name under which a caller uploads objects: its task, or else its session. Return "" for the root user."""
    return "" if caller.is_root else caller.task_id or caller.principal.arn


def use_private_objects(tx: Tx[Store], task: Task) -> None:
    """Keep the objects to which a new task refers until the task has ended."""
    if "overrides" in task.details:
        for key in private_objects(task.details["overrides"]):
            tx.store.private_environments.use(key)


def release_private_objects(tx: Tx[Store], task: Task) -> None:
    """Delete the objects of a task that has ended, unless another task uses them within a minute."""
    if "overrides" in task.details:
        for key in private_objects(task.details["overrides"]):
            tx.store.private_environments.release(key, tx.now_s + UNUSED_S)
            tx.due(f"private-environment:{key}", tx.now_s + UNUSED_S)


def keep_uploaded_object(tx: Tx[Store], key: str, caller: Caller) -> None:
    """Keep an uploaded object for an hour. Delete it then, unless a task has used it by then."""
    tx.store.private_environments.keep(key, tx.now_s + UPLOADED_S, _uploader(caller))
    tx.due(f"private-environment:{key}", tx.now_s + UPLOADED_S)
