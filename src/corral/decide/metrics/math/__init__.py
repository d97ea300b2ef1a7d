"""CloudWatch's metric math: `parse` parses an expression over time series, and `evaluate` computes its result."""

from corral.decide.metrics.math.evaluate import evaluate, to_result
from corral.decide.metrics.math.parse import Expression, InvalidExpression, calls_in, names_in, parse
from corral.decide.metrics.math.series import ExpressionScope, Series, Value

__all__ = [
    "Expression",
    "ExpressionScope",
    "InvalidExpression",
    "Series",
    "Value",
    "calls_in",
    "evaluate",
    "names_in",
    "parse",
    "to_result",
]
