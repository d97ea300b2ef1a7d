"""When a failed attempt of a Batch job is retried."""

from __future__ import annotations

import pytest

from corral.model.job import Attempt, ExitRule, JobSpec
from corral.model.task import Demand
from corral.services.batch.job_attempts import retries

HOST = "Host EC2 (instance i-0123456789abcdef0) terminated."
EXITED = "Essential container in task exited"
RETRY_HOST = ExitRule(retries=True, on_status_reason="Host EC2*")
EXIT_OTHERWISE = ExitRule(retries=False, on_reason="*")


def spec(attempts: int, *rules: ExitRule) -> JobSpec:
    return JobSpec("arn:aws:batch:r:1:job-definition/d:1", "batch-d:1", Demand(), attempts_max=attempts, exit_rules=rules)


def attempt(status_reason: str = EXITED, reason: str = "", exit_code: int | None = 1) -> Attempt:
    return Attempt("t", "c", "i", 1.0, 2.0, exit_code, reason, status_reason, "")


@pytest.mark.parametrize(
    ("attempts", "ended", "again"), [(1, 1, False), (2, 1, True), (2, 2, False), (10, 9, True), (10, 10, False)]
)
def test_attempts_without_rules(attempts: int, ended: int, again: bool) -> None:
    assert retries(spec(attempts), ended, attempt()) is again


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        (attempt(HOST, exit_code=None), True),
        (attempt(EXITED), False),
        (attempt("host EC2 (instance i-1) terminated.", exit_code=None), False),  # patterns are case sensitive
        (attempt("The Host EC2 (instance i-1) terminated."), False),  # a pattern begins at the first character
    ],
)
def test_the_first_matching_rule_decides(failed: Attempt, again: bool) -> None:
    assert retries(spec(3, RETRY_HOST, EXIT_OTHERWISE), 1, failed) is again


@pytest.mark.parametrize(
    ("pattern", "exit_code", "matched"),
    [("1", 1, True), ("1", 12, False), ("1*", 12, True), ("13*", 137, True), ("137", None, False), ("*", None, True)],
)
def test_exit_codes(pattern: str, exit_code: int | None, matched: bool) -> None:
    rules = (ExitRule(retries=False, on_exit_code=pattern), ExitRule(retries=True, on_reason="*"))
    assert retries(spec(3, *rules), 1, attempt(exit_code=exit_code)) is not matched


def test_all_patterns_of_a_rule_must_match() -> None:
    rule = ExitRule(retries=False, on_status_reason="Task failed*", on_reason="CannotPull*", on_exit_code="*")
    pulled = attempt("Task failed to start", "CannotPullContainerError: no such image", None)
    assert not retries(spec(3, rule), 1, pulled)
    assert retries(spec(3, rule), 1, attempt("Task failed to start", "CannotStartContainerError", None))
    assert retries(spec(3, rule), 1, attempt(EXITED, "CannotPullContainerError"))


def test_no_matching_rule_means_a_retry() -> None:
    assert retries(spec(2, ExitRule(retries=False, on_exit_code="42")), 1, attempt())


def test_rules_do_not_add_attempts() -> None:
    assert not retries(spec(2, ExitRule(retries=True, on_exit_code="1")), 2, attempt())
