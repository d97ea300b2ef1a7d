"""A minimal core for the protocol in `model/agent_protocol.py`, which can misbehave on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import msgspec

from corral.model.agent_protocol import Ack, Declined, Execute, Hello, Orders, PauseOrder, Report, ToCore
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Observed, RunPause, RunSpec
from corral.node import link
from corral.node.link import Link
from engines.nodes import NodeFolder
from eventually import soon

MESSAGES = msgspec.json.Decoder(ToCore)


class FakeCore:
    def __init__(self, node: NodeFolder) -> None:
        self._loop = asyncio.new_event_loop()
        self._node = node
        self._server: asyncio.Server | None = None
        self._link: Link | None = None
        self._conversations: set[asyncio.Task[None]] = set()
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []
        self.runs: dict[str, Observed] = {}
        self.stored: dict[str, int] = defaultdict(int)  # run id → offset
        self.texts: dict[str, list[str]] = defaultdict(list)
        self.stored_at_end: dict[str, int] = {}  # what was stored when the end of the run was told
        self.samples: dict[str, GpuSample] = {}
        self.refused_chunks = 0
        self.names: list[str] | None = None  # the accounts that the welcome names
        self.accounts: list[dict[str, int]] = []  # the answers
        self.declined: list[Declined] = []
        self.fault: Callable[[int], str] = lambda number: ""  # "before" or "after" the commit of report `number`
        self.listen()

    def listen(self) -> None:
        self._server = self._loop.run_until_complete(link.listen(self._node.node, self._opened))

    def _opened(self, link: Link) -> None:
        task = self._loop.create_task(self._converse(link))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def _converse(self, link: Link) -> None:
        self._link = link
        while (received := await link.receive()) is not None:
            message = MESSAGES.decode(received[1])
            if message.hello is not None:
                self.hellos.append(message.hello)
                self.runs.update({run.run_id: run for run in message.hello.runs})
                link.send_message({"welcome": {} if self.names is None else {"accounts": self.names}})
            elif message.declined is not None:
                self.declined.append(message.declined)
            elif message.accounts is not None:
                self.accounts.append(message.accounts)
            elif message.report is not None:
                fault = self.fault(len(self.reports))
                if fault != "before":
                    ack = self._commit(message.report)
                if fault:
                    break
                link.send_message({"ack": ack})
        self._link = None
        await link.abort("a fault")

    def _commit(self, report: Report) -> Ack:
        self.reports.append(report)
        for chunk in report.logs:
            if chunk.start == self.stored[chunk.run_id]:
                self.stored[chunk.run_id] = chunk.end
                self.texts[chunk.run_id] += [text for _, text in chunk.events]
            else:
                self.refused_chunks += 1
        for run in report.runs:
            self.runs[run.run_id] = run
            if run.stopped_at_s is not None:
                self.stored_at_end[run.run_id] = self.stored[run.run_id]
        self.samples.update({sample.gpu_id: sample for sample in report.gpus})
        return Ack({chunk.run_id: self.stored[chunk.run_id] for chunk in report.logs})

    def order(self, *start: RunSpec, stop: list[str] | None = None, check: list[RunSpec] | None = None) -> None:
        assert self._link is not None
        self._link.send_message({"orders": Orders(list(start), stop or [], check or [])})

    def pause(self, run_id: str, number: int, *, paused: bool) -> None:
        assert self._link is not None
        self._link.send_message({"pause": PauseOrder(run_id, number, paused)})

    def execute(self, order: Execute) -> None:
        assert self._link is not None
        self._link.send_message({"execute": order})

    def answered(self, run_id: str, number: int) -> RunPause:
        """Wait for the answer to an order to pause or continue a run."""
        self.until(lambda: (pause := self.runs[run_id].pause) is not None and pause.number >= number, f"answer {number}")
        pause = self.runs[run_id].pause
        assert pause is not None and pause.number == number
        return pause

    def name_accounts(self, *names: str) -> None:
        assert self._link is not None
        self._link.send_message({"accounts": list(names)})

    def say_quit(self, why: str) -> None:
        assert self._link is not None
        self._link.send_message({"quit": why})

    def until(self, check: Callable[[], object], what: str = "") -> None:
        self._loop.run_until_complete(soon(check, what))

    def greeted(self, times: int = 1) -> None:
        self.until(lambda: len(self.hellos) >= times, "hello")

    def ended(self, *run_ids: str) -> list[Observed]:
        self.until(
            lambda: all(run_id in self.runs and self.runs[run_id].stopped_at_s is not None for run_id in run_ids),
            "ended",
        )
        return [self.runs[run_id] for run_id in run_ids]

    def go_away(self) -> None:
        """Stop listening and close all connections, like a core that dies."""

        async def leave() -> None:
            if self._server is not None:
                self._server.close()
            if self._link is not None:
                await self._link.abort("the core dies")
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._loop.run_until_complete(leave())
        self._link = None

    def close(self) -> None:
        self.go_away()
        self._loop.close()
