"""The cluster query language of ECS: an expression selects container instances.

    attribute:ecs.instance-type =~ g5.* and not (task:group == service:web)

An expression is parsed once and then evaluated for each instance. The left side of a comparison is called its subject. A subject
can have no value or several values on one instance. For example, `task:group` has several values if the instance runs tasks of
several groups. A comparison such as `==` is true if at least one value satisfies it. A negated comparison (`!=`, `not_in`...) is
true if no value satisfies the comparison that it negates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from msgspec import Struct

from corral.decide.pattern import Pattern, PatternError

LENGTH_MAX = 2_000
DEPTH_MAX = 50
CACHED_MATCHES_MAX = 1_000

SubjectValues = Callable[[str], Sequence[str]]  # subject → its values on one instance
Predicate = Callable[[SubjectValues], bool]

EQUALITY = ("==", "!=")
ORDER = (">", ">=", "<", "<=")
LISTS = ("in", "!in")
PATTERNS = ("=~", "!~")
EXISTENCE = ("exists", "!exists")
NAMES = {
    "equals": "==", "not_equals": "!=", "greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<=",
    "exists": "exists", "not_exists": "!exists", "in": "in", "not_in": "!in", "matches": "=~", "not_matches": "!~",
}  # fmt: skip
NEGATED = {"!=": "==", "!in": "in", "!~": "=~", "!exists": "exists"}

# The operators that ECS documents for each subject. The subject `attribute:NAME` accepts every operator.
SUBJECTS = {
    "agentConnected": (*EQUALITY, *LISTS, *PATTERNS),
    "agentVersion": (*EQUALITY, *ORDER),
    "ec2InstanceId": (*EQUALITY, *LISTS, *PATTERNS),
    "registeredAt": (*EQUALITY, *ORDER),
    "runningTasksCount": (*EQUALITY, *ORDER),
    "pendingTasksCount": (*EQUALITY, *ORDER),
    "task:group": (*EQUALITY, *LISTS, *PATTERNS, *EXISTENCE),
}
COUNTS = {"runningTasksCount", "pendingTasksCount"}
TASK_SUBJECTS = {*COUNTS, "task:group"}  # the values of these subjects change when tasks start and stop

BLANKS = re.compile(r"\s*")
SUBJECT = re.compile(r"[^\s()\[\],=!<>&|~'\"]+")
OPERATOR = re.compile(r"==|!=|>=|<=|=~|!~|>|<|!\s*exists\b|!\s*in\b|[a-z_]+")
BARE = re.compile(r"(?:(?!&&|\|\|)[^\s()\[\],'\"])+")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|([+-])(\d\d):?(\d\d))?)?")


class InstanceQueryError(ValueError):
    """The expression is not valid. The message has the position of the error."""


class InstanceQuery(Struct, frozen=True):
    text: str
    matches: Predicate
    subjects: frozenset[str]

    @property
    def depends_on_tasks(self) -> bool:
        """Whether the start or stop of a task can change the result, even if no attribute of an instance changes."""
        return bool(self.subjects & TASK_SUBJECTS)


@lru_cache(maxsize=512)
def parse_instance_query(text: str) -> InstanceQuery:
    if len(text) > LENGTH_MAX:
        raise InstanceQueryError(f"The expression has {len(text)} characters; up to {LENGTH_MAX} are allowed.")
    reader = _Reader(text)
    matches = reader.whole()
    return InstanceQuery(text, matches, frozenset(reader.subjects))


class _Reader:
    """A recursive descent parser: text → predicate. `not` binds tightest, then `and`, then `or`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.subjects: set[str] = set()

    def whole(self) -> Predicate:
        found = self._any_of()
        self._skip_blanks()
        if self._at < len(self._text):
            raise self._error("expected 'and', 'or' or the end")
        return found

    def _error(self, what: str, at: int | None = None) -> InstanceQueryError:
        at = self._at if at is None else at
        near = f"'{self._text[at : at + 20]}'" if at < len(self._text) else "the end"
        return InstanceQueryError(f"Invalid expression '{self._text}' at character {at + 1}, near {near}: {what}.")

    def _skip_blanks(self) -> None:
        found = BLANKS.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _accept(self, *words: str) -> bool:
        """If the text continues with one of these words, consume the word and return True."""
        self._skip_blanks()
        for word in words:
            end = self._at + len(word)
            if self._text.startswith(word, self._at) and not (word.isalpha() and self._text[end : end + 1].isalnum()):
                self._at = end
                return True
        return False

    def _any_of(self) -> Predicate:
        alternatives = [self._all_of()]
        while self._accept("or", "||"):
            alternatives.append(self._all_of())
        return (
            alternatives[0] if len(alternatives) == 1 else lambda values: any(alternative(values) for alternative in alternatives)
        )

    def _all_of(self) -> Predicate:
        parts = [self._negated()]
        while self._accept("and", "&&"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda values: all(part(values) for part in parts)

    def _negated(self) -> Predicate:
        negations = 0
        while self._accept("not", "!"):
            negations += 1
        found = self._parentheses() if self._accept("(") else self._comparison()
        return _not(found) if negations % 2 else found

    def _parentheses(self) -> Predicate:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"parentheses nested more than {DEPTH_MAX} deep")
        found = self._any_of()
        if not self._accept(")"):
            raise self._error("expected ')'")
        self._depth -= 1
        return found

    def _comparison(self) -> Predicate:
        subject = self._subject()
        operator = self._operator(subject)
        self.subjects.add(subject)
        plain = NEGATED.get(operator, operator)
        test = self._test(subject, plain)
        if operator in NEGATED:
            return lambda values: not any(map(test, values(subject)))
        return lambda values: any(map(test, values(subject)))

    def _subject(self) -> str:
        self._skip_blanks()
        found = SUBJECT.match(self._text, self._at)
        subject = found[0] if found else ""
        if subject in SUBJECTS or (subject.startswith("attribute:") and subject != "attribute:"):
            self._at += len(subject)
            return subject
        if not found:
            raise self._error("expected a subject, such as attribute:NAME")
        raise self._error(f"'{subject}' is not a subject; use attribute:NAME or one of {', '.join(sorted(SUBJECTS))}")

    def _operator(self, subject: str) -> str:
        self._skip_blanks()
        start = self._at
        found = OPERATOR.match(self._text, start)
        symbol = re.sub(r"\s", "", found[0]) if found else ""
        operator = NAMES.get(symbol, symbol)
        if found is None or operator not in (*EQUALITY, *ORDER, *LISTS, *PATTERNS, *EXISTENCE):
            raise self._error("expected an operator, such as == or in")
        if operator not in SUBJECTS.get(subject, (operator,)):
            raise self._error(f"{subject} does not take the operator {symbol}")
        self._at = found.end()
        return operator

    def _test(self, subject: str, operator: str) -> Callable[[str], bool]:
        """Return a function that tests one value of the subject."""
        if operator == "exists":
            return lambda value: True
        if operator == "in":
            return frozenset(self._list()).__contains__
        self._skip_blanks()
        start = self._at
        if operator == "=~":
            return self._pattern(start)
        argument = self._argument()
        if subject == "registeredAt":
            return self._compare_time(operator, argument, start)
        if subject in COUNTS:
            if not NUMBER.fullmatch(argument):
                raise self._error(f"{subject} must be compared with a number", start)
            return _ordered(operator, argument)
        if operator == "==":
            return lambda value: value == argument
        return _ordered_versions(operator, argument) if subject == "agentVersion" else _ordered(operator, argument)

    def _list(self) -> list[str]:
        if not self._accept("["):
            raise self._error("expected a list, such as [a, b]")
        found = [self._argument()]
        while self._accept(","):
            found.append(self._argument())
        if not self._accept("]"):
            raise self._error("expected ',' or ']'")
        return found

    def _argument(self) -> str:
        self._skip_blanks()
        quote = self._text[self._at : self._at + 1]
        if quote and quote in "'\"":
            return self._quoted(quote)
        found = BARE.match(self._text, self._at)
        if found is None:
            raise self._error("expected a value")
        self._at = found.end()
        return found[0]

    def _quoted(self, quote: str) -> str:
        start, found = self._at, []
        self._at += 1
        while (character := self._text[self._at : self._at + 1]) != quote:
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in (quote, "\\"):
                self._at += 1
                character = self._text[self._at]
            if not character:
                raise self._error("a quote is not closed", start)
            found.append(character)
            self._at += 1
        self._at += 1
        return "".join(found)

    def _pattern(self, start: int) -> Callable[[str], bool]:
        """Parse a pattern.

        Without quotes, the pattern ends at the next blank, or at a closing parenthesis that has no opening parenthesis in the
        pattern.
        """
        if self._text[start : start + 1] in ("'", '"'):
            text = self._quoted(self._text[start])
        else:
            text = self._bare_pattern()
        if not text:
            raise self._error("expected a pattern")
        try:
            return lru_cache(CACHED_MATCHES_MAX)(Pattern(text).matches)  # many instances have the same values
        except PatternError as error:
            raise self._error(f"the pattern {text} is not valid: {error}", start) from None

    def _bare_pattern(self) -> str:
        start, opened, in_set = self._at, 0, False
        while self._at < len(self._text) and not (character := self._text[self._at]).isspace():
            if character == "\\":
                self._at += 1
            elif in_set:
                in_set = character != "]"
            elif character == "[":
                in_set = True
            elif character == "(":
                opened += 1
            elif character == ")":
                if not opened:
                    break
                opened -= 1
            self._at += 1
        self._at = min(self._at, len(self._text))
        return self._text[start : self._at]

    def _compare_time(self, operator: str, argument: str, start: int) -> Callable[[str], bool]:
        then_s = timestamp_s(argument)
        if then_s is None:
            raise self._error("expected a date, such as 2018-06-18 or 2018-06-18T22:28:28+00:00", start)
        return lambda value: _compares(operator, float(int(float(value))), then_s)


def _not(holds: Predicate) -> Predicate:
    return lambda values: not holds(values)


def _ordered(operator: str, argument: str) -> Callable[[str], bool]:
    """Return a function that tests one value.

    A numeric argument is compared by value, and only with numbers. Any other argument is compared as text.
    """
    if NUMBER.fullmatch(argument):
        number = float(argument)
        return lambda value: NUMBER.fullmatch(value) is not None and _compares(operator, float(value), number)
    return lambda value: _compares(operator, value, argument)


def _ordered_versions(operator: str, argument: str) -> Callable[[str], bool]:
    """Compare versions part by part: 1.9 is before 1.10."""
    version = _version(argument)
    return lambda value: _compares(operator, _version(value), version)


def _version(text: str) -> tuple[tuple[int, str], ...]:
    return tuple(_ordered_part(part) for part in re.findall(r"[0-9]+|[^0-9.]+", text))


def _ordered_part(part: str) -> tuple[int, str]:
    """Return a sort key: numbers sort by value, with any number of digits. Every other text sorts before the numbers."""
    if not "0" <= part[0] <= "9":
        return -1, part
    digits = part.lstrip("0")
    return len(digits), digits


def _compares(operator: str, left: object, right: object) -> bool:
    if operator == "==":
        return left == right
    less: bool = left < right  # type: ignore[operator]
    more: bool = right < left  # type: ignore[operator]
    return {">": more, ">=": not less, "<": less, "<=": not more}[operator]


def timestamp_s(text: str) -> float | None:
    """Convert a date in a format that ECS documents to seconds since the epoch. Return None for any other text."""
    found = TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    year, month, day, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds < 61):
        return None
    since_march = (month + 9) % 12  # months since March; in a year that starts in March, the leap day is the last day
    years = year - (month <= 2)
    days = years * 365 + years // 4 - years // 100 + years // 400 + (since_march * 153 + 2) // 5 + day - 1 - 719_468
    offset = (int(found[8]) * 60 + int(found[9])) * (1 if found[7] == "+" else -1) if found[7] else 0
    return float(days * 86_400 + hours * 3600 + (minutes - offset) * 60 + seconds)
