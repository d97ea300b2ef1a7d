"""The operations of AWS Batch and their handlers."""

from __future__ import annotations

from corral.services import Handler

HANDLERS: dict[str, Handler] = {}
