"""The constraints of Systems Manager. Errors have AWS's usual text."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

TABLE = ConstraintTable(
    usual_wording("ValidationException"),
    {
        "PutParameter.Value": Limit(min=1),
        "PutParameter.DataType": Limit(
            enum=("text", "aws:ec2:image", "aws:ssm:integration"),
            text="The following data type is not supported: {value} (Data type names are all lowercase.)",
        ),
    },
)
