"""Which lender gives the machine of an instance, and with which options.

The tag `corral:lender` of an instance, or an entry of its type in [instance-types] of corral.toml, names lenders in the order in
which they are asked. The lender `local` stands for the hosts that have joined by themselves. It is the default.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from corral.core.transactions import Tx
from corral.model.allocation import LENDER_TAG, LOCAL
from corral.model.lender_settings import LenderSettings
from corral.store import Store

TAGS = "corral:"  # then the kind of a lender, a hyphen and the name of an option, such as corral:slurm-partition
VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:&|*()\[\]@+-]{0,99}")


class Lending(Struct, frozen=True):
    """The lenders of an instance in their order, and the options of its allocation."""

    lenders: tuple[str, ...] = (LOCAL,)
    options: dict[str, str] = {}
    refusal: str = ""  # why the lenders or the options are not valid; empty: they are

    @property
    def is_local(self) -> bool:
        return self.lenders == (LOCAL,)


LOCAL_ONLY = Lending()


def lending_of(tx: Tx[Store], type_: str, details: dict[str, Any]) -> Lending:
    """Return the lenders of an instance with this type and these details (`Instance.details`)."""
    tags = {tag["Key"]: tag["Value"] for tag in details.get("Tags", ()) if tag["Key"].startswith(TAGS)}
    mapping = tx.settings.instance_types.get(type_)
    named = tags.get(LENDER_TAG)
    if named is None and (mapping is None or not mapping.lenders):
        return LOCAL_ONLY
    given_names = [each.strip() for each in named.split(",")] if named is not None else mapping.lenders  # type: ignore[union-attr]
    names = tuple(dict.fromkeys(given_names))
    for name in names:
        if name != LOCAL and name not in tx.settings.lenders:
            known = ", ".join(sorted({LOCAL, *tx.settings.lenders}))
            return Lending(refusal=f"there is no lender '{name[:100]}'. corral.toml has these: {known}.")
    given = dict[str, str]()
    for name in names:
        if name != LOCAL:
            settings = tx.settings.lenders[name]
            own = {key.removeprefix(TAGS): value for key, value in tags.items() if key.startswith(f"{TAGS}{settings.kind}-")}
            if refusal := _refusal(name, settings, own):
                return Lending(refusal=refusal)
            given |= own
    return Lending(names, given)


def why_lent_later(tx: Tx[Store], instance_id: str) -> str:
    """Return what the lender of an instance says while its machine has not joined. Empty: the instance waits for no lender."""
    allocation = tx.store.allocations.get(instance_id)
    if allocation is None or allocation.host_id:
        return ""
    why = allocation.reason or f"the lender {allocation.lender} has not answered yet"
    return f"{why} (the attempt before: {allocation.said})" if allocation.said and allocation.said not in why else why


def _refusal(lender: str, settings: LenderSettings, options: dict[str, str]) -> str:
    """Return why tags choose options that are not allowed. Callers set tags, and administrators decide what they may choose."""
    known = {f"{settings.kind}-{name}": name for name in settings.options}
    for name, value in options.items():
        tag = TAGS + name
        if name not in known:
            return f"the tag {tag[:100]} is unknown: use one of {', '.join(TAGS + each for each in known)}."
        if not VALUE.fullmatch(value):
            return (
                f"the value of the tag {tag} is not valid: use a letter or digit, then up to 99 letters, digits and _.,:&|*()[]@+-."
            )
        permitted = settings.allow.get(known[name], ())
        if value not in permitted:
            allowed = ", ".join(permitted) or "none"
            return f"{tag}={value} is not allowed: [lenders.{lender}] of corral.toml allows {allowed}."
    return ""
