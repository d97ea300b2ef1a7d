"""IAM: AWS's usual wording, and a text of its own for names with wrong characters."""

from corral.aws.constraints.tables import ConstraintTable, Violation, usual_wording
from corral.aws.wire_errors import error_class
from corral.errors import ApiError

NAME = r"[\w+=,.@-]+"
_usual = usual_wording("ValidationError")


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    if len(violations) > 1 or first.kind != "pattern" or first.limit.pattern != NAME:
        return _usual(operation, violations)
    return error_class("ValidationError")(
        f"The specified value for {first.where()} is invalid. It must contain only alphanumeric characters and/or the following: "
        "+=,.@_-"
    )


TABLE = ConstraintTable(_wording)
