"""Patterns in brackets, which test the space-separated fields of a message: [ip, user, ..., status=4*, size>1000]."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from corral.decide.logs.pattern.conditions import (
    REGEXES_MAX,
    TOO_MANY_REGEXES,
    Comparison,
    Every,
    Some,
    hint_of,
    holds,
    leaves,
    read_comparison,
    read_tree,
)
from corral.decide.logs.pattern.reader import Reader
from corral.model.message_hint import EVERY_MESSAGE, Hint, all_of

NAME = re.compile(r"[A-Za-z0-9_-]+")
ALONE = re.compile(r"[A-Za-z0-9_-]+(?=\s*(,|\]|$))")
WORD = re.compile(r"\S+")

FieldTree = Comparison | Every[Comparison] | Some[Comparison]


class Field(Struct, frozen=True):
    name: str  # empty: the field has no name
    condition: FieldTree | None = None

    def fits(self, text: str) -> bool:
        condition = self.condition
        if type(condition) is Comparison:
            return condition.holds(text)
        return condition is None or holds(condition, lambda comparison: comparison.holds(text))

    @property
    def hint(self) -> Hint:
        return EVERY_MESSAGE if self.condition is None else hint_of(self.condition, lambda comparison: comparison.hint)


class Fields(Struct, frozen=True):
    before: tuple[Field, ...]
    after: tuple[Field, ...] = ()
    gap: bool = False  # `...`: any number of fields between `before` and `after`
    exact = False
    has_fields = True

    @property
    def hint(self) -> Hint:
        return all_of(field.hint for field in (*self.before, *self.after))

    @property
    def regexes(self) -> int:
        conditions = [field.condition for field in (*self.before, *self.after) if field.condition is not None]
        return sum(comparison.literal.regex is not None for condition in conditions for comparison in leaves(condition))

    def matches(self, message: str) -> bool:
        texts = split(message)
        over = len(texts) - len(self.before) - len(self.after)
        if over < 0 or (over and not self.gap):
            return False
        for fields, start in ((self.before, 0), (self.after, len(self.before) + over)):
            for at, field in enumerate(fields, start):
                if field.condition is not None and not field.fits(texts[at]):
                    return False
        return True

    def extract(self, message: str) -> Mapping[str, str]:
        """Return name → text. The name of a field without a name is its position, such as `$1`."""
        texts = split(message)
        over = len(texts) - len(self.before) - len(self.after)
        names = [*(field.name for field in self.before), *[""] * over, *(field.name for field in self.after)]
        return {f"${name or at}": text for at, (name, text) in enumerate(zip(names, texts), 1)}


def split(message: str) -> list[str]:
    """Split a message into fields. A text in brackets or quotes is one field, even if it contains spaces."""
    if '"' not in message and "[" not in message:
        return message.split()
    found, at, bracket = [], 0, 0
    while word := WORD.search(message, at):
        at, end = word.start(), -1
        if message[at] == '"':
            end = message.find('"', at + 1)
        elif message[at] == "[":
            if bracket >= 0 and bracket <= at:  # the last "]" that was found is before this field, so find the next one
                bracket = message.find("]", at)
            end = bracket
        if end > at and (end + 1 == len(message) or message[end + 1].isspace()):
            found.append(message[at + 1 : end])
            at = end + 1
        else:
            found.append(word.group())
            at = word.end()
    return found


def parse_fields(reader: Reader) -> Fields:
    reader.take("[")
    sides: list[list[Field]] = [[]]
    while True:
        if reader.take("..."):
            if len(sides) == 2:
                raise reader.error("a pattern may contain '...' only once")
            sides.append([])
        else:
            sides[-1].append(_field(reader))
        if not reader.take(","):
            break
    reader.end("]")
    fields = Fields(tuple(sides[0]), tuple(sides[-1]) if len(sides) == 2 else (), gap=len(sides) == 2)
    if fields.regexes > REGEXES_MAX:
        raise reader.error(TOO_MANY_REGEXES)
    return fields


def _field(reader: Reader) -> Field:
    if reader.peek() in (",", "]"):
        return Field("")
    if name := reader.match(ALONE):
        return Field(name)
    names: list[str] = []

    def condition(reader: Reader) -> Comparison:
        reader.peek()
        name = reader.match(NAME)
        if not name:
            raise reader.error("a field's name is missing here")
        if names and name != names[0]:
            reader.at -= len(name)
            raise reader.error(f"all conditions of one field must name '{names[0]}', not '{name}'")
        names.append(name)
        comparison = read_comparison(reader)
        if comparison is None:
            raise reader.error("an operator is missing here: =, !=, <, >, <= or >=")
        return comparison

    tree = read_tree(reader, condition)
    return Field(names[0], tree)
