"""CloudWatch's search expressions, which select the series for the function SEARCH.

Names are split into tokens: at a change from lower to upper case, between letters and digits, and at each character that is neither
a letter nor a digit. A search term is split in the same way. The term matches a series if its tokens occur, next to each other, in
the namespace, the metric name, a dimension name or a dimension value of the series.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from corral.model.metric import Metric

QUERY_MAX = 1024
DEPTH_MAX = 50
SEPARATOR = " "
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
TOKEN = re.compile(
    r'\s*(?:(?P<exact>"(?:[^"\\]|\\.)*")|(?P<sign>[()=,])|(?P<term>(?:[^\s()=,"\\]|\\.)+))'  # the parser ignores commas
)
SCHEMA = re.compile(r'"[^"]*"|[^,"]+|[,"]')
MetricPredicate = Callable[[Metric], bool]


class InvalidSearch(Exception):
    """The search expression is invalid. The message says why."""


class MetricSearch(Struct, frozen=True):
    namespace: str | None  # None: any namespace
    dimensions: frozenset[str] | None  # a match has exactly these dimension names; None: any dimensions
    name: str | None  # the metric name that the expression requires: only series with it are read; None: any name
    _matches: MetricPredicate

    def matches(self, metric: Metric) -> bool:
        if self.namespace is not None and metric.namespace != self.namespace:
            return False
        if self.dimensions is not None and {name for name, _ in metric.dimensions} != self.dimensions:
            return False
        return self._matches(metric)


def parse_search(text: str) -> MetricSearch:
    if len(text) > QUERY_MAX:
        raise InvalidSearch(f"A search expression has at most {QUERY_MAX} characters")
    namespace, dimensions, rest = _schema(text.strip())
    parser = _Parser(rest)
    matches = parser.parse()
    if matches is None and namespace is None:
        raise InvalidSearch("A search needs a metric schema, a search term, or both")
    return MetricSearch(namespace, dimensions, parser.required_name, matches or (lambda _: True))


@lru_cache(maxsize=1024)  # each term of a search is compared with the same names
def tokens_of(text: str) -> str:
    """Return the tokens of a text, each between two separators. So adjacent tokens of the text are a substring of the result."""
    return SEPARATOR + "".join(f"{token}{SEPARATOR}" for token in WORD.findall(text))


def _schema(text: str) -> tuple[str | None, frozenset[str] | None, str]:
    if not text.startswith("{"):
        return None, None, text
    inner, closed, rest = text[1:].partition("}")
    parts = [part for each in SCHEMA.findall(inner) if (part := each.strip())]
    names, commas = [part.strip('"') for part in parts[::2]], parts[1::2]
    if not closed or len(parts) % 2 == 0 or set(commas) - {","} or not all(names) or "," in names:
        raise InvalidSearch("A metric schema is written {Namespace, DimensionName, ...}")
    return names[0], frozenset(names[1:]), rest


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0
        self.required_name: str | None = None
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise InvalidSearch(f"Unexpected '{text[at:].strip()[0]}' in the search term")
            at = found.end()
            if found[found.lastgroup] != ",":
                self._tokens.append((found.lastgroup, found[found.lastgroup]))

    def parse(self) -> MetricPredicate | None:
        if not self._tokens:
            return None
        found = self._any()
        if self._at < len(self._tokens):
            raise InvalidSearch(f"Unexpected '{self._tokens[self._at][1]}' in the search term")
        return found

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "")

    def _take(self, kind: str, text: str) -> bool:
        if self._peek() != (kind, text):
            return False
        self._at += 1
        return True

    def _any(self) -> MetricPredicate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSearch("The search term is nested too deeply")
        parts = [self._all()]
        while self._take("term", "OR"):
            parts.append(self._all())
            self.required_name = None
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda metric: any(part(metric) for part in parts)

    def _all(self) -> MetricPredicate:
        parts = [self._not()]
        while self._peek()[0] and self._peek() not in (("sign", ")"), ("term", "OR")):
            self._take("term", "AND")
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda metric: all(part(metric) for part in parts)

    def _not(self) -> MetricPredicate:
        if self._take("term", "NOT"):
            known = self.required_name
            inner = self._not()
            self.required_name = known
            return lambda metric: not inner(metric)
        if self._take("sign", "("):
            inner = self._any()
            if not self._take("sign", ")"):
                raise InvalidSearch("A parenthesis is not closed")
            return inner
        return self._term()

    def _term(self) -> MetricPredicate:
        kind, text = self._peek()
        if kind not in ("exact", "term") or (kind, text) in (("term", "AND"), ("term", "OR")):
            raise InvalidSearch(f"Unexpected '{text}' in the search term" if kind else "The search term ends too early")
        self._at += 1
        if not self._take("sign", "="):
            wanted = _text_matcher(kind, text)
            return lambda metric: any(wanted(part) for part in _parts(metric))
        name = _plain(kind, text)
        value_kind, value = self._peek()
        if value_kind not in ("exact", "term"):
            raise InvalidSearch(f"{name}= needs a value")
        self._at += 1
        if name == "MetricName" and value_kind == "exact" and self._depth == 1:
            self.required_name = _plain(value_kind, value)
        return _property(name, _text_matcher(value_kind, value))


def _plain(kind: str, text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1] if kind == "exact" else text)


def _parts(metric: Metric) -> list[str]:
    return [metric.namespace, metric.name, *(part for pair in metric.dimensions for part in pair)]


def _property(name: str, wanted: Callable[[str], bool]) -> MetricPredicate:
    if name == "MetricName":
        return lambda metric: wanted(metric.name)
    if name == "Namespace":
        return lambda metric: wanted(metric.namespace)
    return lambda metric: any(wanted(value) for key, value in metric.dimensions if key == name)


def _text_matcher(kind: str, text: str) -> Callable[[str], bool]:
    plain = _plain(kind, text)
    if kind == "exact":
        return lambda part: part == plain
    wanted = tokens_of(plain)
    if wanted == SEPARATOR:
        raise InvalidSearch(f"'{text}' has no letter or digit to search for; put it in double quotes")
    lowered = wanted.lower()
    if wanted.count(SEPARATOR) == 2:  # one token
        joined = lowered.replace(SEPARATOR, "")
        return lambda part: (found := tokens_of(part).lower()).replace(SEPARATOR, "") == joined or lowered in found
    if not plain.isalnum():  # the term contains delimiters, so upper and lower case are equal
        return lambda part: lowered in tokens_of(part).lower()
    return lambda part: wanted in tokens_of(part)
