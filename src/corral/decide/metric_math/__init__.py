"""CloudWatch's metric math: `parse` parses an expression over time series, and `evaluate` computes its result."""

from corral.decide.metric_math.evaluate import evaluate, to_result
from corral.decide.metric_math.parse import Expression, InvalidExpression, calls_in, names_in, parse
from corral.decide.metric_math.series import ExpressionScope, Series, Value

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
