"""Parts of responses that are the same in many responses, for example the description of a stopped task."""

from __future__ import annotations

from typing import Any


class ConstantResult(dict[str, Any]):
    """A structure of a result that must not be changed. The serializer writes its JSON text once, and keeps this text."""

    __slots__ = ("json",)

    def __init__(self, members: dict[str, Any]) -> None:
        super().__init__(members)
        self.json = b""  # set by `aws/serialize/json_body.py`


class ExtendedResult(dict[str, Any]):
    """A structure of a result that has all members of a ConstantResult, and others. It must not be changed."""

    __slots__ = ("constant", "others")

    def __init__(self, constant: ConstantResult, others: dict[str, Any]) -> None:
        super().__init__(constant, **others)
        assert len(self) == len(constant) + len(others), "a member is in both parts"
        self.constant = constant
        self.others = others
