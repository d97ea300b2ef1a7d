"""The error text of EC2 for a violated constraint, for example:

Value (large) for parameter instanceTenancy is invalid. Valid values: default, dedicated, host.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, Violation, displayed
from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    member = first.path[0]
    rule = f"Valid values: {', '.join(map(str, first.limit.enum))}." if first.kind == "enum" and first.limit.enum else ""
    if not rule:
        rule = f"It {first.phrase.removeprefix('Member ')}."
    return error_class("InvalidParameterValue")(
        f"Value ({displayed(first.value)}) for parameter {member[:1].lower()}{member[1:]} is invalid. {rule}"
    )


IDS = Limit(max=1000)  # AWS's limit of ids in one request; the policies are evaluated for each of them
TABLE = ConstraintTable(
    _wording,
    {
        ":InstanceType": Unchecked("the model lacks new types and those of corral.toml; the handlers refuse unknown types"),
        "*.InstanceIds": IDS,
        "*.Resources": IDS,
    },
)
