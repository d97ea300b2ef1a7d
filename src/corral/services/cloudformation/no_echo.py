"""Hides secret values in what a stack shows: the reasons and the properties of its events.

Secret are the values of parameters with NoEcho, the data of a custom resource whose response has NoEcho, and the values of secure
parameters. Error texts and properties contain the values themselves, so the values are searched there. They are also found as JSON
text, in a URL and in base64, and if an error text contains only the beginning of a long value.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from corral.core.transactions import Tx
from corral.model.stack import NO_ECHO, Stack
from corral.store import Store

HIDDEN = "****"
SHORT = 4  # a value with fewer characters is hidden only as a whole word: other texts contain these characters by chance
START = 12  # if a text contains so many characters of the beginning of a value, they are hidden

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{4,}={0,2}\s*")


def secrets_of(tx: Tx[Store], stack: Stack) -> set[str]:
    """Return the secret values of a stack, also those from before the operation in progress."""
    found = {
        text
        for version in (stack.version, stack.stable)
        if version is not None and version.no_echo
        for text in parameter_secrets(version.no_echo, version.parameters, version.values)
    }
    for resource in tx.store.stacks.with_no_echo(stack.id):
        for resource_version in (resource.version, resource.before):
            if resource_version is not None and NO_ECHO in resource_version.attributes:
                found.update(_texts(resource_version.attributes))
    return found


def parameter_secrets(no_echo: Iterable[str], *values: Mapping[str, Any]) -> set[str]:
    """Return the texts of parameters with NoEcho. The value of a list parameter also has its items."""
    return {text for name in no_echo for each in values if name in each for text in _texts(each[name])}


def _texts(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        return {text for name, each in value.items() if name != NO_ECHO for text in _texts(each)}
    if isinstance(value, list | tuple):
        return {text for each in value for text in _texts(each)}
    return {str(value)} if value not in (None, "", True, False) else set()


def hide(value: Any, secrets: set[str]) -> Any:
    """Return properties, or a text, with HIDDEN instead of each secret value."""
    if not secrets:
        return value
    if isinstance(value, dict):
        return {name: hide(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [hide(each, secrets) for each in value]
    if isinstance(value, str):
        return _hide_text(value, secrets)
    return HIDDEN if str(value) in secrets else value


def _hide_text(text: str, secrets: set[str]) -> str:
    if _BASE64.fullmatch(text) and (decoded := _decoded(text)) and any(secret in decoded for secret in secrets):
        return HIDDEN
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < SHORT:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
            continue
        for form in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret), b64encode(secret.encode()).decode()}:
            text = text.replace(form, HIDDEN)
        text = _hide_start(text, secret)
    return text


def _hide_start(text: str, secret: str) -> str:
    if len(secret) <= START or (at := text.find(secret[:START])) < 0:
        return text
    end = START
    while text[at + end : at + end + 1] == secret[end : end + 1] != "":
        end += 1
    return text[:at] + HIDDEN + text[at + end :]


def _decoded(text: str) -> str:
    try:
        return b64decode(text).decode(errors="replace")
    except ValueError:
        return ""
