"""Decides whether a Batch job gets another attempt after a failed attempt.

`evaluateOnExit` is a list of rules. A rule has up to three patterns: for the status reason of the attempt, and for the reason and
the exit code of its container. The first rule whose patterns all match decides. If no rule matches, the job is retried. In all
cases, a job gets at most `attempts_max` attempts.
"""

from __future__ import annotations

from corral.model.job import Attempt, ExitRule, JobSpec


def retries(spec: JobSpec, ended: int, attempt: Attempt) -> bool:
    """Return whether a job gets another attempt. `ended` is the number of its ended attempts, including this failed attempt."""
    if ended >= spec.attempts_max:
        return False
    return next((rule.retries for rule in spec.exit_rules if matches(rule, attempt)), True)


def matches(rule: ExitRule, attempt: Attempt) -> bool:
    """Return whether all patterns of a rule match a failed attempt. A pattern that is not given matches everything."""
    code = "" if attempt.exit_code is None else str(attempt.exit_code)
    return (
        _matches(rule.on_status_reason, attempt.status_reason)
        and _matches(rule.on_reason, attempt.reason)
        and _matches(rule.on_exit_code, code)
    )


def _matches(pattern: str, value: str) -> bool:
    """Match a pattern as AWS documents it: an exact text, or the beginning of a text if the pattern ends with an asterisk.

    Upper and lower case differ. The pattern "*" also matches a missing reason or exit code.
    """
    if not pattern:
        return True
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
