"""Metrics Insights: CloudWatch's SQL for metrics. A query aggregates one metric over all series that match its WHERE clause."""

from __future__ import annotations

import re

from msgspec import Struct

from corral.model.metric import Metric
from corral.model.numbers import whole_number

FUNCTIONS = {"AVG": "Average", "COUNT": "SampleCount", "MAX": "Maximum", "MIN": "Minimum", "SUM": "Sum"}
SERIES_MAX = 500  # the maximum number of series that one query or search returns
OTHER = "Other"  # GROUP BY uses this value for a series that lacks the dimension
TOKEN = re.compile(
    r"\s*(?:(?P<label>\"(?:[^\"\\]|\\.)*\")|(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z0-9_.]+)|(?P<sign>!=|<>|[(),=]))"
)


class InvalidQuery(Exception):
    """The query is invalid. The message says why."""


class DimensionCondition(Struct, frozen=True):
    label: str
    equal: bool
    value: str


class Select(Struct, frozen=True):
    statistic: str
    name: str
    namespace: str
    schema: frozenset[str] | None = None  # a match has exactly these dimensions; None: any dimensions
    where: tuple[DimensionCondition, ...] = ()
    group_by: tuple[str, ...] = ()
    order_by: str | None = None
    descending: bool = False
    limit: int = SERIES_MAX

    def matches(self, metric: Metric) -> bool:
        labels = dict(metric.dimensions)
        if self.schema is not None and labels.keys() != self.schema:
            return False
        return all((labels.get(each.label) == each.value) is each.equal for each in self.where)

    def group_of(self, metric: Metric) -> tuple[str, ...]:
        labels = dict(metric.dimensions)
        return tuple(labels.get(label, OTHER) for label in self.group_by)


def is_query(text: str) -> bool:
    return re.match(r"\s*SELECT\b", text, re.IGNORECASE) is not None


def parse_query(text: str) -> Select:
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise InvalidQuery(f"Unexpected '{text[at:].strip()[0]}' in the query")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()

    def parse(self) -> Select:
        self._expect("SELECT")
        statistic = self._function()
        name = self._label("the name of a metric")
        self._expect_sign(")")
        self._expect("FROM")
        schema: frozenset[str] | None = None
        if self._take_word("SCHEMA"):
            self._expect_sign("(")
            namespace, *labels = self._labels()
            schema = frozenset(labels)
            self._expect_sign(")")
        else:
            namespace = self._label("a namespace")
        where = self._where() if self._take_word("WHERE") else ()
        group_by: tuple[str, ...] = ()
        if self._take_word("GROUP"):
            self._expect("BY")
            group_by = tuple(self._labels())
        order_by, descending = self._order()
        limit = self._limit() if self._take_word("LIMIT") else SERIES_MAX
        if self._at < len(self._tokens):
            raise self._unexpected()
        return Select(statistic, name, namespace, schema, where, group_by, order_by, descending, limit)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _unexpected(self, wanted: str = "") -> InvalidQuery:
        kind, text = self._peek()
        found = f"Unexpected '{text}' in the query" if kind else "The query ends too early"
        return InvalidQuery(f"{found}: expected {wanted}" if wanted else found)

    def _take_word(self, word: str) -> bool:
        kind, text = self._peek()
        if kind != "word" or text.upper() != word:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take_word(word):
            raise self._unexpected(word)

    def _expect_sign(self, sign: str) -> None:
        if self._peek() != ("sign", sign):
            raise self._unexpected(sign)
        self._at += 1

    def _label(self, what: str) -> str:
        kind, text = self._peek()
        if kind not in ("label", "word"):
            raise self._unexpected(what)
        self._at += 1
        return re.sub(r"\\(.)", r"\1", text[1:-1]) if kind == "label" else text

    def _labels(self) -> list[str]:
        found = [self._label("a name")]
        while self._peek() == ("sign", ","):
            self._at += 1
            found.append(self._label("a name"))
        return found

    def _function(self) -> str:
        kind, text = self._peek()
        if kind != "word" or text.upper() not in FUNCTIONS:
            raise self._unexpected(" or ".join(FUNCTIONS))
        self._at += 1
        self._expect_sign("(")
        return FUNCTIONS[text.upper()]

    def _where(self) -> tuple[DimensionCondition, ...]:
        found = [self._condition()]
        while self._take_word("AND"):
            found.append(self._condition())
        return tuple(found)

    def _condition(self) -> DimensionCondition:
        label = self._label("the name of a dimension")
        kind, sign = self._peek()
        if kind != "sign" or sign not in ("=", "!=", "<>"):
            raise self._unexpected("= or !=")
        self._at += 1
        kind, text = self._peek()
        if kind != "text":
            raise self._unexpected("a value in single quotes")
        self._at += 1
        return DimensionCondition(label, sign == "=", re.sub(r"\\(.)", r"\1", text[1:-1]))

    def _order(self) -> tuple[str | None, bool]:
        if not self._take_word("ORDER"):
            return None, False
        self._expect("BY")
        function = self._function()
        self._expect_sign(")")
        descending = self._take_word("DESC")
        if not descending:
            self._take_word("ASC")
        return function, descending

    def _limit(self) -> int:
        kind, text = self._peek()
        limit = whole_number(text, SERIES_MAX)
        if kind != "word" or not limit:
            raise self._unexpected(f"a number from 1 to {SERIES_MAX}")
        self._at += 1
        return limit
