"""ECR: a wording of its own, without the value.

Invalid parameter at 'repositoryName' failed to satisfy constraint: 'must satisfy regular expression '[a-z0-9]+...''
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Violation
from corral.aws.wire_errors import error_class
from corral.errors import ApiError

ACCOUNT_SETTINGS = ("BASIC_SCAN_TYPE_VERSION", "REGISTRY_POLICY_SCOPE", "BLOB_MOUNTING")


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    rule = first.phrase.removeprefix("Member ")
    if rule == f"must satisfy regular expression pattern: {first.limit.pattern}":
        rule = f"must satisfy regular expression '{first.limit.pattern}'"
    return error_class("InvalidParameterException")(
        f"Invalid parameter at '{first.where()}' failed to satisfy constraint: '{rule}'"
    )


TABLE = ConstraintTable(
    _wording,
    {
        "PutImage.imageTag": Limit(pattern="[a-zA-Z0-9_][a-zA-Z0-9._-]{0,299}"),
        "PutImage.imageManifest": Limit(in_bytes=True),
        "PutLifecyclePolicy.lifecyclePolicyText": Limit(min=0),  # a shorter one is refused as JSON, which says what it lacks
        "GetAccountSetting.name": Limit(enum=ACCOUNT_SETTINGS),
        "PutAccountSetting.name": Limit(enum=ACCOUNT_SETTINGS),
        "Tag.Key": Limit(
            min=1, max=128, code="InvalidTagParameterException", text="A tag key has {min} to {max} characters: '{value}'."
        ),
        "Tag.Value": Limit(
            max=256, code="InvalidTagParameterException", text="A tag value has at most {max} characters: '{value}'."
        ),
    },
)
