"""The constraints of ECR. Its error messages have their own format, which does not contain the invalid value:

Invalid parameter at 'repositoryName' failed to satisfy constraint: 'must satisfy regular expression '[a-z0-9]+...''
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Violation
from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError
from corral.model.image import ACCOUNT_SETTINGS, TAG_PATTERN


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
        "PutImage.imageTag": Limit(pattern=TAG_PATTERN),
        "PutImage.imageManifest": Limit(in_bytes=True),
        "PutLifecyclePolicy.lifecyclePolicyText": Limit(min=0),  # the handler checks it, with a more exact error
        "GetAccountSetting.name": Limit(enum=tuple(ACCOUNT_SETTINGS)),
        "PutAccountSetting.name": Limit(enum=tuple(ACCOUNT_SETTINGS)),
        "Tag.Key": Limit(
            min=1, max=128, code="InvalidTagParameterException", text="A tag key has {min} to {max} characters: '{value}'."
        ),
        "Tag.Value": Limit(
            max=256, code="InvalidTagParameterException", text="A tag value has at most {max} characters: '{value}'."
        ),
    },
)
