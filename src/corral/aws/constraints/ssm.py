"""The constraints of Systems Manager. Errors have AWS's usual text."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

# The values of all types but text are stored without a check.
DATA_TYPES = (
    "text", "aws:ec2:image", "aws:ssm:integration", "aws:region", "aws:account:id", "boolean", "integer", "float", "binary",
    "hostname", "email", "ipv4-address", "ipv6-address", "url", "json", "jsonc",
)  # fmt: skip

TABLE = ConstraintTable(
    usual_wording("ValidationException"),
    {
        "PutParameter.Value": Limit(min=1),
        "PutParameter.DataType": Limit(
            enum=DATA_TYPES,
            text="The following data type is not supported: {value} (Data type names are all lowercase.)",
        ),
    },
)
