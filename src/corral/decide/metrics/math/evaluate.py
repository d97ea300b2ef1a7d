"""Evaluate parsed expressions of metric math: operators, arrays, and calls of the functions in `functions.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable

from corral.decide.metrics.math.functions import FUNCTIONS, UNSUPPORTED
from corral.decide.metrics.math.parse import (
    Array,
    Binary,
    Expression,
    FunctionCall,
    InvalidExpression,
    Keyword,
    Negative,
    Number,
    QueryReference,
    QuotedText,
)
from corral.decide.metrics.math.series import ExpressionScope, Series, SeriesValues, Value

BinaryOperator = Callable[[float, float], float]
ARRAY_MAX = 1000


def _power(base: float, exponent: float) -> float:
    found = base**exponent
    if isinstance(found, complex):
        raise ValueError("the root of a negative number")
    return float(found)


OPERATIONS: dict[str, BinaryOperator] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": _power,
    "==": lambda left, right: float(left == right),
    "!=": lambda left, right: float(left != right),
    "<": lambda left, right: float(left < right),
    "<=": lambda left, right: float(left <= right),
    ">": lambda left, right: float(left > right),
    ">=": lambda left, right: float(left >= right),
    "AND": lambda left, right: float(left != 0 and right != 0),
    "OR": lambda left, right: float(left != 0 or right != 0),
}


def evaluate(expression: Expression, scope: ExpressionScope) -> Value:
    chain: list[Binary] = []  # a sum of many terms has many levels, so its left sides are not evaluated by recursion
    while isinstance(expression, Binary):
        chain.append(expression)
        expression = expression.left
    value = _counted(_evaluated(expression, scope), scope)
    for each in reversed(chain):
        value = _counted(_combined(each.operator, value, evaluate(each.right, scope)), scope)
    return value


def _counted(value: Value, scope: ExpressionScope) -> Value:
    if isinstance(value, Series):
        scope.count(1 + len(value.values))
    elif isinstance(value, tuple):
        scope.count(len(value) + sum(len(series.values) for series in value))
    return value


def _evaluated(expression: Expression, scope: ExpressionScope) -> Value:
    match expression:
        case Number(value):
            return value
        case QueryReference(id):
            if id not in scope.results:
                raise InvalidExpression(f"There is no query with the id '{id}'")
            return scope.results[id]
        case Negative(operand):
            return _each(evaluate(operand, scope), lambda series: {at: -value for at, value in series.values.items()}, operator.neg)
        case Array(items):
            listed = tuple(series for item in items for series in _listed(evaluate(item, scope)))
            if len(listed) > ARRAY_MAX:
                raise InvalidExpression(f"An array can contain at most {ARRAY_MAX} time series")
            return listed
        case FunctionCall(name, arguments):
            return _called(name, arguments, scope)
        case QuotedText(text):
            raise InvalidExpression(f"Unexpected text '{text}'")
        case Keyword(word):
            raise InvalidExpression(f"Unexpected '{word}'")
    raise AssertionError(expression)


def to_result(value: Value) -> Series | tuple[Series, ...]:
    """Convert the value of an expression to its result. Raise an error for a scalar, which is not a valid result."""
    if isinstance(value, float):
        raise InvalidExpression("The expression returns a scalar; its result must be a time series or an array of time series")
    return value


def _listed(value: Value) -> tuple[Series, ...]:
    if isinstance(value, float):
        raise InvalidExpression("An array contains time series, not scalars")
    return (value,) if isinstance(value, Series) else value


def _each(value: Value, of_series: Callable[[Series], SeriesValues], of_number: Callable[[float], float]) -> Value:
    if isinstance(value, float):
        return of_number(value)
    if isinstance(value, Series):
        return value.over(of_series(value))
    return tuple(series.over(of_series(series)) for series in value)


def _combined(sign: str, left: Value, right: Value) -> Value:
    operation = OPERATIONS[sign]
    if isinstance(left, tuple) and isinstance(right, tuple):
        raise InvalidExpression(f"Unsupported operand types for {sign}: two arrays of time series")
    if isinstance(left, tuple):
        return tuple(_series(operation, each, right) for each in left)  # type: ignore[arg-type]  # mypy forgets the check above
    if isinstance(right, tuple):
        return tuple(_series(operation, left, each) for each in right)
    if isinstance(left, float) and isinstance(right, float):
        found = _number(operation, left, right)
        if found is None:
            raise InvalidExpression(f"{left} {sign} {right} is not a number")
        return found
    return _series(operation, left, right)


def _series(operation: BinaryOperator, left: float | Series, right: float | Series) -> Series:
    """Apply the operator at each time at which one of the two series has a value.

    If the other series has no value at that time, use 0. Drop results that are not numbers, such as the result of a division by 0.
    """
    if isinstance(left, Series) and isinstance(right, Series):
        times = sorted(left.values.keys() | right.values.keys()) if left.values.keys() != right.values.keys() else list(left.values)
        pairs = ((at, left.values.get(at, 0.0), right.values.get(at, 0.0)) for at in times)
        model = left if left.period_s >= right.period_s else right
    elif isinstance(left, Series):
        assert isinstance(right, float)
        model, pairs = left, ((at, value, right) for at, value in left.values.items())
    else:
        assert isinstance(right, Series)
        model, pairs = right, ((at, left, value) for at, value in right.values.items())
    found = ((at, _number(operation, one, other)) for at, one, other in pairs)
    return model.over({at: value for at, value in found if value is not None})


def _number(operation: BinaryOperator, left: float, right: float) -> float | None:
    try:
        found = operation(left, right)
    except (ArithmeticError, ValueError):
        return None
    return found if abs(found) < float("inf") else None


def _called(name: str, arguments: tuple[Expression, ...], scope: ExpressionScope) -> Value:
    if name in UNSUPPORTED:
        raise InvalidExpression(f"Corral does not support the function {name}")
    function = FUNCTIONS.get(name)
    if function is None:
        raise InvalidExpression(f"Unknown function '{name}'; functions are written in uppercase letters")
    given = [
        argument.text
        if isinstance(argument, QuotedText)
        else argument
        if isinstance(argument, Keyword)
        else evaluate(argument, scope)
        for argument in arguments
    ]
    return function(scope, *given) if function.takes(len(given)) else function.refuse(len(given))
