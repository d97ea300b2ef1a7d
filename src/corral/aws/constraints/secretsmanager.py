"""The constraints of Secrets Manager. Errors have AWS's usual text, except for names."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

VALUE_MAX_BYTES = 65_536
INVALID_NAME = "Invalid name. Must be a valid name containing alphanumeric characters, or any of the following: -/_+=.@!"

TABLE = ConstraintTable(
    usual_wording("ValidationException"),
    {
        "CreateSecret.Name": (Limit(min=1, max=512), Limit(pattern=r"[A-Za-z0-9/_+=.@!-]+", text=INVALID_NAME)),
        "*.SecretId": (Limit(min=1, max=2048), Limit(pattern=r"[A-Za-z0-9/_+=.@!:-]+", text=INVALID_NAME)),
        ":SecretStringType": Limit(max=VALUE_MAX_BYTES, in_bytes=True),
    },
)
