"""The constraints of IAM. Errors have AWS's usual text, except errors for names with invalid characters."""

from corral.aws.constraints.tables import ConstraintTable, Violation, usual_wording
from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError
from corral.model.iam_rules import INVALID_NAME, NAME_CHARACTERS

NAME = f"{NAME_CHARACTERS}+"  # the same pattern as in botocore's model
_usual = usual_wording("ValidationError")


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    if len(violations) > 1 or first.kind != "pattern" or first.limit.pattern != NAME:
        return _usual(operation, violations)
    return error_class("ValidationError")(INVALID_NAME.format(member=first.where()))


TABLE = ConstraintTable(_wording)
