"""Series of metrics, packed, and what is judged by them: their only SQL."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from corral.database import Database, Migration


class MetricStore(Database):
    MIGRATIONS: tuple[Migration, ...] = ()

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, files(__package__).joinpath("metrics.sql").read_text(), self.MIGRATIONS)
