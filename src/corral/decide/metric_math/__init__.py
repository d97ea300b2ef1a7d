"""CloudWatch's metric math: expressions over time series. `parse` reads one, `evaluate` computes it."""

from corral.decide.metric_math.evaluate import evaluate, to_result
from corral.decide.metric_math.parse import Expression, InvalidExpression, names_in, parse
from corral.decide.metric_math.values import Scope, Series, Value

__all__ = ["Expression", "InvalidExpression", "Scope", "Series", "Value", "evaluate", "names_in", "parse", "to_result"]
