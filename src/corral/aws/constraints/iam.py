"""The constraints of IAM. Errors have AWS's usual text without the invalid values, except those for characters in names."""

from corral.aws.constraints.tables import ConstraintTable, Violation, usual_wording
from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError
from corral.model.iam_rules import INVALID_NAME, NAME_CHARACTERS

NAME = f"{NAME_CHARACTERS}+"  # the same pattern as in botocore's model
ELEMENTS = "Member must satisfy constraint: ["  # the phrase about the elements of a list begins with it
_usual = usual_wording("ValidationError")


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    if len(violations) == 1 and first.kind == "pattern" and first.limit.pattern == NAME:
        return error_class("ValidationError")(INVALID_NAME.format(member=first.where()))
    for violation in violations:
        violation.is_displayed = False
        if violation.phrase.startswith(ELEMENTS):
            violation.phrase = f"{violation.phrase.removesuffix(']')}, Member must not be null]"
    return _usual(operation, violations)


TABLE = ConstraintTable(_wording)
