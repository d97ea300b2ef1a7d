"""The folders that `corral run --ship` sends. Their chunks and manifests are objects of a private bucket (`cli/runs/ship.py`)."""

from __future__ import annotations

BUCKET = "corral-shipped-folders"  # cli/runs/ship.py repeats this name
VARIABLE = "CORRAL_SHIPPED_FOLDER"  # of a container: the key of the manifest of its folder; cli/runs/run.py repeats this name
PATH = "/v4/shipped/"  # then the id of the task, / and the key of an object; server/task_endpoints.py serves it
