"""Faults of GPUs: simulates a fault of a simulated GPU, and ends the fault of a GPU that works again, for `corral gpu`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.fleet.hosts import gpu_key
from corral.model.agent_protocol import GpuFaultOrder
from corral.model.gpu import XID_MAX, xid_text
from corral.services.corral.errors import GpuNotFoundException, HostNotConnectedException, InvalidRequestException
from corral.services.corral.signals import NOT_CONNECTED
from corral.store import Store

SETTLE_S = 10.0  # how long the response waits for the report of the host


def set_gpu_fault(params: dict[str, Any], caller: Caller) -> Generator[Callable[[Tx[Store]], Any], Any, dict[str, Any]]:
    gpu_id, xid = params["gpu"], params.get("xid")
    until_s = yield partial(_order, gpu_id=gpu_id, xid=xid)
    wanted = "" if xid is None else xid_text(xid)  # None: this Xid is no fault, because tasks can use the GPU
    fault = "" if wanted is None else (yield partial(_settled, gpu_id=gpu_id, wanted=wanted, until_s=until_s))
    return {"gpu": gpu_id, "fault": fault or None}


def _order(tx: Tx[Store], gpu_id: str, xid: int | None) -> float:
    """Order the change. Return until when to wait for it."""
    host_id, simulated = _find(tx, gpu_id)
    if xid is not None and not simulated:
        raise InvalidRequestException(f"{gpu_id} is a real GPU: only simulated GPUs can be made to fail.")
    if xid is not None and not 0 < xid <= XID_MAX:
        raise InvalidRequestException(f"xid {xid} is not valid: use a number from 1 to {XID_MAX}.")
    if not tx.settings.server.is_connected(host_id):
        raise HostNotConnectedException(NOT_CONNECTED)
    tx.order_once(host_id, GpuFaultOrder(gpu_id, xid))
    return tx.now_s + SETTLE_S


def _find(tx: Tx[Store], gpu_id: str) -> tuple[str, bool]:
    """Return (host id, is simulated)."""
    found = tx.store.hosts.gpu(gpu_id)
    if found is None:
        raise GpuNotFoundException(f"GPU {gpu_id} does not exist. `corral status --json` lists the ids.")
    return found


def _settled(tx: Tx[Store], gpu_id: str, wanted: str, until_s: float) -> str:
    """Wait until a GPU has the wanted fault, but at most until `until_s`. Return the fault that the GPU has then, or no text."""
    host_id, _ = _find(tx, gpu_id)
    fault = tx.store.hosts.faults(host_id).get(gpu_id)
    text = fault.text if fault is not None else ""
    if text != wanted and tx.now_s < until_s and not tx.final:
        raise Wait([gpu_key(gpu_id)], until_s)
    return text
