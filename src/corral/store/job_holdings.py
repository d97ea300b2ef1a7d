"""SQL of holdings. A holding is a record of the vCPUs and consumable resources that the current attempt of a Batch job uses.

A holding begins when the job is dispatched, and ends with the attempt. A share is the set of jobs of a fair share queue that have
the same share identifier. Holdings, and their sums per compute environment, share and consumable resource, are also in memory,
because each dispatch needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import orjson

from corral.core.database import Database
from corral.model.job_line import Holding, ShareUse

Name = tuple[str, str]  # region and name
K = TypeVar("K")


class JobHoldings:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute
        self._on_rollback = database.undo_log.on_rollback
        self._held: dict[str, Holding] = {}  # job id → holding; empty on a read-only connection
        self._vcpus: dict[Name, float] = {}  # compute environment → vCPUs of its jobs
        self._in_use: dict[Name, float] = {}  # consumable resource → quantity
        self._shares: dict[Name, dict[str, ShareUse]] = {}  # queue → share identifier → use
        if not database.reads_only:
            self._rebuild()

    def _rebuild(self) -> None:
        for region, queue, share, used, at_s in self._execute("SELECT * FROM job_share").fetchall():
            self._shares.setdefault((region, queue), {})[share] = ShareUse(0.0, used, at_s)
        for row in self._execute("SELECT * FROM job_holding").fetchall():
            holding = _holding(row)
            self._put(holding)
            use = self._shares.get((holding.region, holding.queue), {}).get(holding.share)
            if use is not None:
                held = use.held + holding.weighted_vcpus
                self._shares[holding.region, holding.queue][holding.share] = ShareUse(held, use.used, use.at_s)

    # Reading

    def get(self, job_id: str) -> Holding | None:
        return self._held.get(job_id)

    def vcpus(self, region: str, environment: str) -> float:
        return self._vcpus.get((region, environment), 0.0)

    def in_use(self, region: str, resource: str) -> int:
        """Return the quantity of a consumable resource that running jobs hold."""
        return int(self._in_use.get((region, resource), 0))

    def share(self, region: str, queue: str, share: str) -> ShareUse:
        return self._shares.get((region, queue), {}).get(share, ShareUse())

    def shares(self, region: str, queue: str) -> Mapping[str, ShareUse]:
        return self._shares.get((region, queue), {})

    def holders_of_resource(self, region: str, resource: str, limit: int) -> list[str]:
        """Return up to `limit` running jobs that hold a consumable resource."""
        sql = (
            "SELECT job_id FROM job_holding WHERE region = ? AND resources != '[]' "
            "AND EXISTS (SELECT 1 FROM json_each(resources) WHERE json_extract(value, '$[0]') = ?) LIMIT ?"
        )
        return [job_id for (job_id,) in self._execute(sql, (region, resource, limit))]

    def holders_in(self, region: str, environment: str, limit: int) -> list[str]:
        """Return up to `limit` jobs that run in a compute environment."""
        sql = "SELECT job_id FROM job_holding WHERE region = ? AND environment = ? LIMIT ?"
        return [job_id for (job_id,) in self._execute(sql, (region, environment, limit))]

    # Writing

    def add(self, holding: Holding) -> None:
        self._execute(
            "INSERT INTO job_holding VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                holding.job_id, holding.region, holding.queue, holding.share, holding.environment, holding.vcpus,
                holding.weighted_vcpus, orjson.dumps(holding.resources).decode(),
            ),
        )  # fmt: skip
        self._put(holding)
        self._on_rollback(partial(self._remove, holding))

    def drop(self, holding: Holding) -> None:
        self._execute("DELETE FROM job_holding WHERE job_id = ?", (holding.job_id,))
        self._remove(holding)
        self._on_rollback(partial(self._put, holding))

    def set_share(self, region: str, queue: str, share: str, use: ShareUse | None) -> None:
        """Write the use of a share. If `use` is None, delete the share."""
        if use is None:
            self._execute("DELETE FROM job_share WHERE region = ? AND queue = ? AND share = ?", (region, queue, share))
        else:
            self._execute(
                "INSERT INTO job_share VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET used = excluded.used, at = excluded.at",
                (region, queue, share, use.used, use.at_s),
            )
        before = self._shares.get((region, queue), {}).get(share)
        self._put_share((region, queue), share, use)
        self._on_rollback(partial(self._put_share, (region, queue), share, before))

    def drop_shares(self, region: str, queue: str) -> None:
        """Delete the shares of a queue that is being deleted. All jobs of the queue have ended."""
        for share in list(self.shares(region, queue)):
            self.set_share(region, queue, share, None)

    def snapshot(self) -> dict[str, Any]:
        """Return the data in memory that is derived from rows, for tests."""
        shares = {queue: dict(uses) for queue, uses in self._shares.items()}
        return {"held": dict(self._held), "vcpus": dict(self._vcpus), "in use": dict(self._in_use), "shares": shares}

    # Changes in memory

    def _put_share(self, queue: Name, share: str, use: ShareUse | None) -> None:
        shares = self._shares.setdefault(queue, {})
        if use is not None:
            shares[share] = use
        else:
            shares.pop(share, None)
        if not shares:
            del self._shares[queue]

    def _put(self, holding: Holding) -> None:
        self._held[holding.job_id] = holding
        self._count(holding, 1)

    def _remove(self, holding: Holding) -> None:
        del self._held[holding.job_id]
        self._count(holding, -1)

    def _count(self, holding: Holding, sign: int) -> None:
        _add(self._vcpus, (holding.region, holding.environment), sign * holding.vcpus)
        for name, quantity in holding.resources:
            _add(self._in_use, (holding.region, name), sign * quantity)


def _add(sums: dict[K, float], key: K, change: float) -> None:
    after = sums.get(key, 0.0) + change
    if after:
        sums[key] = after
    else:
        sums.pop(key, None)


def _holding(row: tuple[Any, ...]) -> Holding:
    job_id, region, queue, share, environment, vcpus, weighted_vcpus, resources = row
    taken = tuple((name, quantity) for name, quantity in orjson.loads(resources))
    return Holding(job_id, region, queue, share, environment, vcpus, weighted_vcpus, taken)
