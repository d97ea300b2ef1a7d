"""Parses and evaluates the rule of a composite alarm: ALARM("name") AND NOT (OK(other) OR AT_LEAST(2, ALARM, (a, b, c)))."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from corral.model.alarm import AlarmState
from corral.model.numbers import whole_number

ELEMENTS_MAX = 500  # the maximum number of alarm names, TRUE, FALSE and parentheses in a rule
ALARMS_MAX = 100
DEPTH_MAX = 100  # the maximum depth of nested parentheses
TOKEN = re.compile(r'\s*(?:(?P<sign>[(),])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s(),"]+))')
STATES = {state.value: state for state in AlarmState}


class AlarmRuleError(Exception):
    """The rule is invalid. The message contains the position and the reason."""


class Always(Struct, frozen=True):
    truth: bool


class InState(Struct, frozen=True):
    state: AlarmState
    alarm: str  # the name or the ARN in the rule


class Not(Struct, frozen=True):
    rule: AlarmRule


class And(Struct, frozen=True):
    rules: tuple[AlarmRule, ...]


class Or(Struct, frozen=True):
    rules: tuple[AlarmRule, ...]


class AtLeast(Struct, frozen=True):
    number: int  # the rule is true if it counts at least this many of `alarms`
    state: AlarmState
    in_it: bool  # True: it counts the alarms that are in `state`; False: the alarms that are in another state
    alarms: tuple[str, ...]


AlarmRule = Always | InState | Not | And | Or | AtLeast


def parse_rule(text: str) -> AlarmRule:
    parser = _Parser(text)
    rule = parser.any_of()
    if parser.peek() is not None:
        raise parser.unexpected("AND, OR or the end of the rule")
    if len(set(alarms_of(rule))) > ALARMS_MAX:
        raise AlarmRuleError(f"the rule names more than {ALARMS_MAX} alarms")
    return rule


def alarms_of(rule: AlarmRule) -> Iterator[str]:
    """Yield the alarms in a rule, in the order of the rule. An alarm may be repeated."""
    match rule:
        case InState(_, alarm):
            yield alarm
        case AtLeast(_, _, _, alarms):
            yield from alarms
        case Not(inner):
            yield from alarms_of(inner)
        case And(rules) | Or(rules):
            for each in rules:
                yield from alarms_of(each)


def evaluate_rule(rule: AlarmRule, state_of: Callable[[str], AlarmState | None]) -> bool:
    """Return whether the rule is true. `state_of` returns None for an alarm that does not exist. Such an alarm is in no state."""
    match rule:
        case Always(truth):
            return truth
        case InState(state, alarm):
            return state_of(alarm) is state
        case Not(inner):
            return not evaluate_rule(inner, state_of)
        case And(rules):
            return all(evaluate_rule(each, state_of) for each in rules)
        case Or(rules):
            return any(evaluate_rule(each, state_of) for each in rules)
        case AtLeast(number, state, in_it, alarms):
            found = [state_of(alarm) for alarm in alarms]
            return sum(each is not None and (each is state) is in_it for each in found) >= number


class _Parser:
    """A recursive-descent parser.

    A token is a sign, an unquoted word, or a quoted name. The token of a quoted name begins with a quotation mark.
    """

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def unexpected(self, wanted: str) -> AlarmRuleError:
        found = self.peek()
        where = "at the end" if found is None else f"at '{found.removeprefix(chr(34))}'"
        return AlarmRuleError(f"{where}: expected {wanted}")

    def any_of(self) -> AlarmRule:
        rules = [self._all_of()]
        while self._take("OR"):
            rules.append(self._all_of())
        return rules[0] if len(rules) == 1 else Or(tuple(rules))

    def _all_of(self) -> AlarmRule:
        rules = [self._negated()]
        while self._take("AND"):
            rules.append(self._negated())
        return rules[0] if len(rules) == 1 else And(tuple(rules))

    def _negated(self) -> AlarmRule:
        negated = False
        while self._take("NOT"):
            negated = not negated
        rule = self._operand()
        return Not(rule) if negated else rule

    def _operand(self) -> AlarmRule:
        if self._take("("):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise AlarmRuleError(f"parentheses are nested more than {DEPTH_MAX} deep")
            rule = self.any_of()
            self._expect(")")
            self._depth -= 1
            return rule
        if self._take("TRUE"):
            return Always(True)
        if self._take("FALSE"):
            return Always(False)
        if self._take("AT_LEAST"):
            return self._at_least()
        for name, state in STATES.items():
            if self._take(name):
                self._expect("(")
                alarm = self._name()
                self._expect(")")
                return InState(state, alarm)
        raise self.unexpected("ALARM, OK, INSUFFICIENT_DATA, AT_LEAST, NOT, TRUE, FALSE or '('")

    def _at_least(self) -> AtLeast:
        self._expect("(")
        amount = self._name()
        self._expect(",")
        in_it = not self._take("NOT")
        state = next((state for name, state in STATES.items() if self._take(name)), None)
        if state is None:
            raise self.unexpected("ALARM, OK or INSUFFICIENT_DATA")
        self._expect(",")
        self._expect("(")
        alarms = [self._name()]
        while self._take(","):
            alarms.append(self._name())
        self._expect(")")
        self._expect(")")
        return AtLeast(_number(amount, len(alarms)), state, in_it, tuple(alarms))

    def _take(self, keyword: str) -> bool:
        if (self.peek() or "").upper() != keyword:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self.unexpected(f"'{sign}'")

    def _name(self) -> str:
        found = self.peek()
        if found is None or found in ("(", ")", ","):
            raise self.unexpected("a name or a number")
        self._at += 1
        return found[1:] if found.startswith('"') else found


def _tokens(text: str) -> list[str]:
    found, at, elements, text = [], 0, 0, text.rstrip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise AlarmRuleError(f"at '{text[at : at + 20].strip()}': a quotation mark is not closed")
        at, quoted, word = token.end(), token["quoted"], token["word"]
        found.append(token["sign"] or (word if word is not None else '"' + re.sub(r"\\(.)", r"\1", quoted)))
        elements += token["sign"] != "," and (word or "").upper() not in ("AND", "OR", "NOT", *STATES, "AT_LEAST")
    if elements > ELEMENTS_MAX:
        raise AlarmRuleError(f"the rule has more than {ELEMENTS_MAX} elements")
    return found


def _number(amount: str, among: int) -> int:
    """Convert `2` or `50%` to a number of alarms."""
    given = whole_number(amount.removesuffix("%"))
    if not given:
        raise AlarmRuleError(f"at '{amount}': expected a number or a percentage of at least 1")
    number = math.ceil(given * among / 100) if amount.endswith("%") else given
    if number > among:
        raise AlarmRuleError(f"at '{amount}': the rule lists only {among} alarms")
    return number
