"""The rule of a composite alarm: ALARM("name") AND NOT (OK(other) OR AT_LEAST(2, ALARM, (a, b, c)))."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from corral.model.alarm import AlarmState

ELEMENTS_MAX = 500  # alarms, TRUE, FALSE and parentheses
ALARMS_MAX = 100
DEPTH_MAX = 100  # parentheses within parentheses
TOKEN = re.compile(r'\s*(?:(?P<sign>[(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s(),"]+))')
STATES = {state.value: state for state in AlarmState}


class RuleError(Exception):
    """The rule cannot be read; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Always:
    truth: bool


@dataclass(frozen=True, slots=True)
class InState:
    state: AlarmState
    alarm: str  # a name or an ARN, as written


@dataclass(frozen=True, slots=True)
class Not:
    rule: Rule


@dataclass(frozen=True, slots=True)
class AllOf:
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class AtLeast:
    number: int  # of `alarms`
    state: AlarmState
    in_it: bool  # False: so many must not be in that state
    alarms: tuple[str, ...]


Rule = Always | InState | Not | AllOf | AnyOf | AtLeast


def parse_rule(text: str) -> Rule:
    reader = _Reader(text)
    rule = reader.any_of()
    if reader.look() is not None:
        raise reader.unexpected("AND, OR or the end")
    if len(set(alarms_of(rule))) > ALARMS_MAX:
        raise RuleError(f"it names more than {ALARMS_MAX} alarms")
    return rule


def alarms_of(rule: Rule) -> Iterator[str]:
    """The alarms that it names, in its order; one named twice comes twice."""
    match rule:
        case InState(_, alarm):
            yield alarm
        case AtLeast(_, _, _, alarms):
            yield from alarms
        case Not(inner):
            yield from alarms_of(inner)
        case AllOf(rules) | AnyOf(rules):
            for each in rules:
                yield from alarms_of(each)


def evaluate(rule: Rule, state_of: Callable[[str], AlarmState | None]) -> bool:
    """`state_of` answers None for an alarm that is not there: it is in no state."""
    match rule:
        case Always(truth):
            return truth
        case InState(state, alarm):
            return state_of(alarm) is state
        case Not(inner):
            return not evaluate(inner, state_of)
        case AllOf(rules):
            return all(evaluate(each, state_of) for each in rules)
        case AnyOf(rules):
            return any(evaluate(each, state_of) for each in rules)
        case AtLeast(number, state, in_it, alarms):
            found = [state_of(alarm) for alarm in alarms]
            return sum(each is not None and (each is state) is in_it for each in found) >= number


class _Reader:
    """One token at a time: a sign or a keyword is itself, a name in quotes comes with one in front."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def look(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def unexpected(self, wanted: str) -> RuleError:
        found = self.look()
        where = "at its end" if found is None else f"at '{found.removeprefix(chr(34))}'"
        return RuleError(f"{where}: {wanted} was expected")

    def any_of(self) -> Rule:
        rules = [self._all_of()]
        while self._took("OR"):
            rules.append(self._all_of())
        return rules[0] if len(rules) == 1 else AnyOf(tuple(rules))

    def _all_of(self) -> Rule:
        rules = [self._one()]
        while self._took("AND"):
            rules.append(self._one())
        return rules[0] if len(rules) == 1 else AllOf(tuple(rules))

    def _one(self) -> Rule:
        negated = False
        while self._took("NOT"):
            negated = not negated
        rule = self._plain()
        return Not(rule) if negated else rule

    def _plain(self) -> Rule:
        if self._took("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise RuleError(f"more than {DEPTH_MAX} parentheses stand within each other")
            rule = self.any_of()
            self._take(")")
            self._depth -= 1
            return rule
        if self._took("TRUE"):
            return Always(True)
        if self._took("FALSE"):
            return Always(False)
        if self._took("AT_LEAST"):
            return self._at_least()
        for name, state in STATES.items():
            if self._took(name):
                self._take("(")
                alarm = self._name()
                self._take(")")
                return InState(state, alarm)
        raise self.unexpected("ALARM, OK, INSUFFICIENT_DATA, AT_LEAST, NOT, TRUE, FALSE or '('")

    def _at_least(self) -> AtLeast:
        self._take("(")
        amount = self._name()
        self._take(",")
        in_it = not self._took("NOT")
        state = next((state for name, state in STATES.items() if self._took(name)), None)
        if state is None:
            raise self.unexpected("ALARM, OK or INSUFFICIENT_DATA")
        self._take(",")
        self._take("(")
        alarms = [self._name()]
        while self._took(","):
            alarms.append(self._name())
        self._take(")")
        self._take(")")
        return AtLeast(_number(amount, len(alarms)), state, in_it, tuple(alarms))

    def _took(self, keyword: str) -> bool:
        if (self.look() or "").upper() != keyword:
            return False
        self._at += 1
        return True

    def _take(self, sign: str) -> None:
        if not self._took(sign):
            raise self.unexpected(f"'{sign}'")

    def _name(self) -> str:
        found = self.look()
        if found is None or found in ("(", ")", ","):
            raise self.unexpected("a name")
        self._at += 1
        return found[1:] if found.startswith('"') else found


def _tokens(text: str) -> list[str]:
    found, at, elements, text = [], 0, 0, text.rstrip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise RuleError(f"at '{text[at : at + 20].strip()}': a quotation mark without its end")
        at, quoted, word = token.end(), token["quoted"], token["word"]
        found.append(token["sign"] or (word if word is not None else '"' + re.sub(r"\\(.)", r"\1", quoted)))
        elements += token["sign"] != "," and (word or "").upper() not in ("AND", "OR", "NOT", *STATES, "AT_LEAST")
    if elements > ELEMENTS_MAX:
        raise RuleError(f"it has more than {ELEMENTS_MAX} elements")
    return found


def _number(amount: str, among: int) -> int:
    """2, or 50%."""
    digits = amount.removesuffix("%")
    if not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise RuleError(f"at '{amount}': a number or a percentage was expected")
    number = math.ceil(int(digits) * among / 100) if amount.endswith("%") else int(digits)
    if number > among:
        raise RuleError(f"at '{amount}': only {among} alarms follow")
    return number
