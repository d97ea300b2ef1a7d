"""Tell the server which of the Unix accounts of its users exist on this host.

The server sends the names of the accounts. The agent answers with those that runs may use here, and looks them up again from time
to time, because an administrator may create an account later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from corral.model.agent_protocol import ACCOUNTS_MAX
from corral.node.account_process import NoAccount, find_account
from corral.node.link import Link

LOOKUP_S = 30.0  # the time between two lookups


class HostAccounts:
    def __init__(self) -> None:
        self._names: list[str] = []
        self._lookup: asyncio.Task[None] | None = None

    def follow(self, names: Iterable[str], core: Link) -> None:
        """Answer with the accounts of these names, and again after each change. The names replace those of an earlier call."""
        self._names = list(names)[:ACCOUNTS_MAX]
        self.stop()
        self._lookup = asyncio.get_running_loop().create_task(self._answer(core))

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None

    async def _answer(self, core: Link) -> None:
        answered: dict[str, int] | None = None
        while True:
            found = await asyncio.to_thread(accounts_of_host, self._names)
            if found != answered:
                core.send_message({"accounts": found})
                answered = found
            if not self._names:
                return
            await asyncio.sleep(LOOKUP_S)


def accounts_of_host(names: Iterable[str]) -> dict[str, int]:
    """Return name → user id of the accounts that runs may use on this host."""
    found = {}
    for name in names:
        with suppress(NoAccount):
            found[name] = find_account(name).uid
    return found
