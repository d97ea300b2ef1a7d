"""The constraints of CloudFormation. Errors have AWS's usual text. The limits in this table are missing in botocore's model."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

NAME = "[a-zA-Z][-a-zA-Z0-9]*"
NAME_OR_ARN = r"([a-zA-Z][-a-zA-Z0-9]*)|(arn:\b(aws|aws-us-gov|aws-cn)\b:[-a-zA-Z0-9:/._+]*)"
_STACK = Limit(min=1, max=1600, pattern=NAME_OR_ARN)

TABLE = ConstraintTable(
    usual_wording("ValidationError"),
    {
        ":TemplateBody": Limit(max=51_200, in_bytes=True),
        "CreateStack.StackName": Limit(min=1, max=128, pattern=NAME),
        "UpdateStack.StackName": _STACK,
        "DeleteStack.StackName": _STACK,
        "CancelUpdateStack.StackName": _STACK,
        ":StackNameOrId": Limit(max=1600),
        "Parameter.ParameterValue": Limit(max=4096, in_bytes=True),
        ":ResourceToSkip": Limit(max=255),
    },
)
