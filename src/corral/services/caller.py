"""Who asks, and from where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    account: str
    region: str
    principal: str  # an ARN
    wait_s: float = 0.0  # X-Corral-Wait: how long the caller would rather wait than hear that nothing is new
