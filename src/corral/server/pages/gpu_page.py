"""The page `/_corral/gpu`. The command `corral gpu` uses it to simulate a fault of a simulated GPU, and to end a fault."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.fleet.hosts import gpu_key
from corral.model.agent_protocol import GpuFaultOrder
from corral.model.gpu import XID_MAX, xid_text
from corral.server.agents.connections import Agents
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.server.task_permissions import RequiredOperation
from corral.store import Store

SETTLE_S = 10.0  # how long the response waits for the report of the host

GpuDenied = api_error("AccessDenied", 403)
InvalidGpuRequest = api_error("InvalidRequest", 400)
GpuNotFound = api_error("GpuNotFound", 404)
GpuNotReachable = api_error("HostNotConnected", 400)
GpuMethodNotAllowed = api_error("MethodNotAllowed", 405)


class GpuChange(Struct, frozen=True, forbid_unknown_fields=True):
    gpu: str
    xid: int | None = None  # None: the GPU works again


class GpuPage:
    def __init__(self, state: Lane[Store], agents: Agents) -> None:
        self._state = state
        self._agents = agents

    def exchange(self, request: aws.Request, request_id: str) -> GpuRequest:
        return GpuRequest(request, request_id, self)

    async def apply(self, change: GpuChange) -> dict[str, Any]:
        """Send the change to the host. Return the fault of the GPU after the host has reported the change, or after SETTLE_S."""
        host_id, simulated = await self._state.submit(partial(_find, gpu_id=change.gpu), read_only=True)
        if change.xid is not None and not simulated:
            raise InvalidGpuRequest(f"{change.gpu} is a real GPU: only simulated GPUs can be made to fail.")
        if change.xid is not None and not 0 < change.xid <= XID_MAX:
            raise InvalidGpuRequest(f"xid {change.xid} is not valid: use a number from 1 to {XID_MAX}.")
        if not self._agents.set_gpu_fault(host_id, GpuFaultOrder(change.gpu, change.xid)):
            raise GpuNotReachable("The agent of the host is not connected. Try again when it is: see `corral status`.")
        wanted = "" if change.xid is None else xid_text(change.xid)  # None: this Xid is no fault, because tasks can use the GPU
        fault = None
        if wanted is not None:
            until_s = (await self._state.submit(_now_s, read_only=True)) + SETTLE_S
            fault = await self._state.submit(partial(_settled, gpu_id=change.gpu, wanted=wanted, until_s=until_s))
        return {"gpu": change.gpu, "fault": fault or None}


class GpuRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    page: GpuPage
    action: str = "corral:SetGpuFault"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "SetGpuFault", dict)

    def denied(self, message: str) -> ApiError:
        return GpuDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method != "POST":
            raise GpuMethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            change = msgspec.json.decode(self.request.body, type=GpuChange)
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidGpuRequest(f'Send {{"gpu": ID, "xid": NUMBER}}, or {{"gpu": ID}} to end a fault ({error}).') from None
        return aws.Response(200, [("content-type", "application/json")], msgspec.json.encode(await self.page.apply(change)))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _now_s(tx: Tx[Store]) -> float:
    return tx.now_s


def _find(tx: Tx[Store], gpu_id: str) -> tuple[str, bool]:
    """Return (host id, is simulated)."""
    found = tx.store.hosts.gpu(gpu_id)
    if found is None:
        raise GpuNotFound(f"GPU {gpu_id} does not exist. `corral status --json` lists the ids.")
    return found


def _settled(tx: Tx[Store], gpu_id: str, wanted: str, until_s: float) -> str:
    """Wait until a GPU has the wanted fault, but at most until `until_s`. Return the fault that the GPU has then, or no text."""
    host_id, _ = _find(tx, gpu_id)
    fault = tx.store.hosts.faults(host_id).get(gpu_id)
    text = fault.text if fault is not None else ""
    if text != wanted and tx.now_s < until_s and not tx.final:
        raise Wait([gpu_key(gpu_id)], until_s)
    return text
