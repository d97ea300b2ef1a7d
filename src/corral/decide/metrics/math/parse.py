"""The parser of metric math.

An expression can contain numbers, ids of other queries, operators, functions with uppercase names, arrays and quoted text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

DEPTH_MAX = 50

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/^<>(),\[\]]))"
)
PRECEDENCE: tuple[frozenset[str], ...] = (  # lowest first
    frozenset({"OR", "||"}),
    frozenset({"AND", "&&"}),
    frozenset({"==", "!=", "<=", ">=", "<", ">"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/"}),
)
SYNONYMS = {"||": "OR", "&&": "AND"}


class InvalidExpression(Exception):
    """The expression is invalid. The message says why."""


class Number(Struct, frozen=True):
    value: float


class QuotedText(Struct, frozen=True):
    text: str


class QueryReference(Struct, frozen=True):
    """The id of another query."""

    id: str


class Keyword(Struct, frozen=True):
    """REPEAT, LINEAR, ASC, DESC, or the name of a function that is not called, such as AVG in `SORT(m1, AVG, ASC)`."""

    word: str


class FunctionCall(Struct, frozen=True):
    function: str
    arguments: tuple[Expression, ...]


class Negative(Struct, frozen=True):
    operand: Expression


class Binary(Struct, frozen=True):
    operator: str
    left: Expression
    right: Expression


class Array(Struct, frozen=True):
    items: tuple[Expression, ...]


Expression = Number | QuotedText | QueryReference | Keyword | FunctionCall | Negative | Binary | Array


def parse(text: str) -> Expression:
    return _Parser(text).parse()


def names_in(expression: Expression) -> Iterator[str]:
    """Return the ids of the queries to which an expression refers."""
    return (part.id for part in _parts(expression) if isinstance(part, QueryReference))


def calls_in(expression: Expression, name: str) -> int:
    return sum(isinstance(part, FunctionCall) and part.function == name for part in _parts(expression))


def _parts(expression: Expression) -> Iterator[Expression]:
    """Return an expression and all its parts. A sum of many terms has many levels, so this function is not recursive."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        yield part
        match part:
            case FunctionCall(_, inner) | Array(inner):
                waiting += reversed(inner)
            case Negative(operand):
                waiting.append(operand)
            case Binary(_, left, right):
                waiting += (right, left)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._next()

    def parse(self) -> Expression:
        found = self._expression()
        if self._kind:
            raise self._unexpected()
        return found

    def _next(self) -> None:
        token = TOKEN.match(self._text, self._at)
        self._begin = self._at
        if token is None:
            rest = self._text[self._at :].strip()
            if rest:
                raise InvalidExpression(f"Unexpected '{rest[0]}' at character {self._text.index(rest[0], self._at) + 1}")
            self._kind, self._token = "", ""
            return
        self._kind, self._token = str(token.lastgroup), str(token[token.lastgroup or 0])
        self._begin, self._at = token.start(token.lastgroup or 0), token.end()

    def _unexpected(self) -> InvalidExpression:
        if not self._kind:
            return InvalidExpression("The expression ends too early")
        return InvalidExpression(f"Unexpected '{self._token}' at character {self._begin + 1}")

    def _take(self, sign: str) -> bool:
        if self._kind != "sign" or self._token != sign:
            return False
        self._next()
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected()

    def _expression(self, level: int = 0) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX * (len(PRECEDENCE) + 3):
            raise InvalidExpression("The expression is nested too deeply")
        found = self._unary() if level == len(PRECEDENCE) else self._chain(level)
        self._depth -= 1
        return found

    def _chain(self, level: int) -> Expression:
        found = self._expression(level + 1)
        while self._kind in ("sign", "name") and self._token in PRECEDENCE[level]:
            operator = SYNONYMS.get(self._token, self._token)
            self._next()
            found = Binary(operator, found, self._expression(level + 1))
        return found

    def _unary(self) -> Expression:
        if self._take("-"):
            return Negative(self._expression(len(PRECEDENCE)))
        base = self._primary()
        if self._take("^"):
            return Binary("^", base, self._expression(len(PRECEDENCE)))
        return base

    def _primary(self) -> Expression:
        kind, token = self._kind, self._token
        if self._take("("):
            found = self._expression()
            self._expect(")")
            return found
        if self._take("["):
            return Array(self._list("]"))
        if kind not in ("number", "text", "name"):
            raise self._unexpected()
        self._next()
        if kind == "number":
            return Number(float(token))
        if kind == "text":
            return QuotedText(re.sub(r"\\(['\"])", r"\1", token[1:-1]) if token[0] == '"' else token[1:-1])
        if self._take("("):
            return FunctionCall(token, self._list(")"))
        return QueryReference(token) if token[0].islower() else Keyword(token)

    def _list(self, end: str) -> tuple[Expression, ...]:
        if self._take(end):
            return ()
        found = [self._expression()]
        while self._take(","):
            found.append(self._expression())
        self._expect(end)
        return tuple(found)
