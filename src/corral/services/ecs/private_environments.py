"""Private environments: S3 objects with the variables of runs, which are deleted when no task needs them any more.

See `model/run_environment.py`. A task that replaces a failed task refers to the same object. It must be launched at most a minute
after the end of the failed task.
"""

from __future__ import annotations

from corral.core import Tx
from corral.model.run_environment import UNUSED_S, UPLOADED_S, private_objects
from corral.model.task import Task
from corral.store import Store


def use_private_objects(tx: Tx[Store], task: Task) -> None:
    """Keep the objects to which a new task refers."""
    if "overrides" in task.details:
        for key in private_objects(task.details["overrides"]):
            tx.store.run_environments.use(key)


def release_private_objects(tx: Tx[Store], task: Task) -> None:
    """Delete the objects of a task that has ended, unless another task uses them within a minute."""
    if "overrides" in task.details:
        for key in private_objects(task.details["overrides"]):
            tx.store.run_environments.release(key, tx.now_s + UNUSED_S)
            tx.due(f"run-environment:{key}", tx.now_s + UNUSED_S)


def keep_uploaded_object(tx: Tx[Store], key: str) -> None:
    """Delete an uploaded object, unless a task uses it within an hour."""
    tx.store.run_environments.keep(key, tx.now_s + UPLOADED_S)
    tx.due(f"run-environment:{key}", tx.now_s + UPLOADED_S)
