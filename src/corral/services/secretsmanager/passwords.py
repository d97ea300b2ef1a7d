"""GetRandomPassword, and the rules for passwords, which templates also have."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.secretsmanager import errors
from corral.store import Store

DEFAULT_LENGTH = 32
TYPES = {  # the member that excludes a type of characters → the characters
    "ExcludeUppercase": string.ascii_uppercase,
    "ExcludeLowercase": string.ascii_lowercase,
    "ExcludeNumbers": string.digits,
    "ExcludePunctuation": string.punctuation,
}


def get_random_password(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    excluded = set(params.get("ExcludeCharacters") or "")
    included = [characters for member, characters in TYPES.items() if not params.get(member)]
    types = [left for characters in included if (left := [each for each in characters if each not in excluded])]
    alphabet = [character for characters in types for character in characters]
    if params.get("IncludeSpace") and " " not in excluded:
        alphabet.append(" ")
    length, required = params.get("PasswordLength", DEFAULT_LENGTH), params.get("RequireEachIncludedType", True)
    if not alphabet:
        raise errors.InvalidParameterException("The password can't exclude all characters: exclude fewer characters or types.")
    if required and length < len(types):
        raise errors.InvalidParameterException(
            f"The password length {length} is too short for a character of each of the {len(types)} included types."
        )
    numbers = _random_numbers(tx)
    chosen = [characters[_below(numbers, len(characters))] for characters in (types if required else ())]
    chosen += [alphabet[_below(numbers, len(alphabet))] for _ in range(length - len(chosen))]
    for at in range(length - 1, 0, -1):  # shuffle, because the characters of the required types are the first ones
        other = _below(numbers, at + 1)
        chosen[at], chosen[other] = chosen[other], chosen[at]
    return {"RandomPassword": "".join(chosen)}


def _random_numbers(tx: Tx[Any]) -> Iterator[int]:
    """Yield random numbers of 32 bits."""
    while True:
        digits = tx.ids.hex32()
        yield from (int(digits[at : at + 8], 16) for at in range(0, 32, 8))


def _below(numbers: Iterator[int], limit: int) -> int:
    """Return a random number below a limit. All numbers have the same probability."""
    fair = 2**32 - 2**32 % limit
    return next(number for number in numbers if number < fair) % limit
