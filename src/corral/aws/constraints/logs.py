"""The constraints of CloudWatch Logs. Errors have AWS's usual text."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)

TOO_LONG = Limit(max=512, text="Invalid LogGroup or LogStream, both must have length less than or equal to {max}.")

TABLE = ConstraintTable(
    usual_wording("InvalidParameterException"),
    {
        ":LogGroupName": (TOO_LONG, Limit(min=1, pattern=r"[\.\-_/#A-Za-z0-9]+")),
        ":LogStreamName": (TOO_LONG, Limit(min=1, pattern="[^:*]*")),
        "PutRetentionPolicy.retentionInDays": Limit(enum=RETENTION_DAYS),
        "MetricTransformation.dimensions": Limit(max=3, text="A metric filter has at most {max} dimensions."),
    },
)
