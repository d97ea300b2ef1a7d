"""A part of a response that is the same in many responses, for example the description of a stopped task."""

from __future__ import annotations

from typing import Any


class ConstantResult(dict[str, Any]):
    """A structure of a result that must not be changed. The serializer writes its JSON text once, and keeps this text."""

    __slots__ = ("json",)

    def __init__(self, members: dict[str, Any]) -> None:
        super().__init__(members)
        self.json: Any = None  # set by `aws/serialize/json_body.py`
