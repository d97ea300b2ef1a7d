"""`python -m store.writer FILE FIRST` commits transactions until it is killed, and prints those that were committed."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

from corral.core.clock import WallClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.store import Store
from store.rows import claim, hello

PER_TRANSACTION = 3


def write(tx: Tx[Store], number: int) -> str:
    tx.store.clusters.put("r", f"c{number}", "ACTIVE", {"number": number})
    tx.store.tasks.add(claim(f"t{number}", since_s=float(number)), (float(number),))
    tx.due(f"look:{number}", tx.now_s + 1e6)
    return str(number)


def main() -> None:
    core = Core(Store(Path(sys.argv[1])), settings=Settings(), clock=WallClock(), ids=RandomIds())
    core.transact([Command(lambda tx: tx.store.hosts.put(hello(), tx.now_s), lambda answer: None)])
    for first in count(int(sys.argv[2]), PER_TRANSACTION):
        numbers = range(first, first + PER_TRANSACTION)
        outbox = core.transact([Command(lambda tx, number=number: write(tx, number), lambda answer: None) for number in numbers])
        os.write(1, "".join(f"{answer}\n" for _, answer in outbox.answers).encode())


if __name__ == "__main__":
    main()
