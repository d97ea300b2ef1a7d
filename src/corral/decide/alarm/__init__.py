"""Judging alarms: M of N windows and missing data, the rules of composite alarms, and who keeps them from acting."""

from corral.decide.alarm.judge import breaches, conclusive, evaluation_range, is_level, judge, samples_needed
from corral.decide.alarm.rule import Rule, RuleError, alarms_of, evaluate, parse_rule
from corral.decide.alarm.suppression import suppress

__all__ = [
    "Rule",
    "RuleError",
    "alarms_of",
    "breaches",
    "conclusive",
    "evaluate",
    "evaluation_range",
    "is_level",
    "judge",
    "parse_rule",
    "samples_needed",
    "suppress",
]
