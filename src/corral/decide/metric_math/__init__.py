"""CloudWatch's metric math: `parse` and `evaluate` for expressions over time series."""

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
