"""The constraints of CloudWatch. The four operations in `OLDER_OPERATIONS` use an older error format with one line per violation:

The parameter MetricData.member.1.Unit must be a value in the set [ Seconds, Microseconds, ... ].
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, Violation, displayed, usual_wording
from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError

OLDER_OPERATIONS = frozenset({"DeleteDashboards", "GetMetricStatistics", "ListMetrics", "PutMetricData"})
ACTIONS = ("AlarmActions", "InsufficientDataActions", "OKActions")
_usual = usual_wording("ValidationException")  # for the query protocol, `serialize/errors.py` replaces this code by ValidationError


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    if operation not in OLDER_OPERATIONS:
        return _usual(operation, violations)
    return error_class("InvalidParameterValueException")("\n".join(dict.fromkeys(map(_older_text, violations))))


def _older_text(violation: Violation) -> str:
    limit, value = violation.limit, violation.value
    parts = [part.removesuffix(".member") for part in reversed(violation.path)]
    path = ".".join(f"member.{part}" if part.isascii() and part.isdigit() else part for part in parts)
    if violation.index:
        path += f".member.{violation.index}"
    if violation.kind == "enum":
        return f"The parameter {path} must be a value in the set [ {', '.join(map(str, limit.enum or ()))} ]."
    if violation.kind == "pattern":
        return f"The value {displayed(value)} for parameter {path} is invalid."
    if violation.kind == "value":
        return f"The value {value} for parameter {path} is invalid: {violation.phrase.removeprefix('Member ')}."
    if isinstance(value, str):
        return f"The parameter {path} must have a length between {limit.min or 0} and {limit.max} characters."
    return f"The collection {path} must not have a size greater than {limit.max}."


def _unsupported(*values: str) -> Limit:
    return Limit(enum=values, text="The value {value} for parameter {name} is not supported.")


INVALID_ENTITIES_DROPPED = Unchecked("the handler ignores an invalid entity, or refuses it if StrictEntityValidation is set")
QUERIES = Limit(max=500, text="The collection {name} must not have a size greater than {max}.")
ARN = Limit(pattern="arn:[^:]+:[^:]+:[^:]*:[^:]*:.+", text="Invalid arn syntax: {value}")
ALARM_NAME = Limit(pattern=r"[^\x00-\x1f\x7f]*")

TABLE = ConstraintTable(
    _wording,
    {
        "PutMetricData.Namespace": Limit(
            pattern=r"[^:\x00-\x1f\x7f][\x20-\x7e]*", text="The value {value} for parameter Namespace is invalid."
        ),
        "PutMetricData.EntityMetricData": Limit(max=2),
        "MetricDatum.StorageResolution": Limit(enum=(1, 60)),
        "MetricDatum.Values": Limit(max=150),
        "Entity.KeyAttributes": INVALID_ENTITIES_DROPPED,
        "Entity.KeyAttributes<key>": INVALID_ENTITIES_DROPPED,
        "Entity.KeyAttributes<value>": INVALID_ENTITIES_DROPPED,
        "Entity.Attributes": INVALID_ENTITIES_DROPPED,
        "Entity.Attributes<key>": INVALID_ENTITIES_DROPPED,
        "Entity.Attributes<value>": INVALID_ENTITIES_DROPPED,
        ":StateValue": Limit(enum=("INSUFFICIENT_DATA", "ALARM", "OK")),  # the order of AWS's error text
        "GetMetricStatistics.Statistics": Limit(min=0),  # CloudWatch treats an empty list like a missing list
        "GetMetricStatistics.ExtendedStatistics": Limit(min=0),
        "GetMetricData.MetricDataQueries": QUERIES,
        "GetMetricData.MaxDatapoints": Limit(
            min=1, max=100_800, text="The parameter MaxDatapoints must be between {min} and {max}."
        ),
        "PutMetricAlarm.Metrics": QUERIES,
        "MetricDataQuery.Id": Limit(
            pattern="[a-z][A-Za-z0-9_]*",
            text="The value {value} for parameter {path} is invalid: it must begin with a lowercase letter "
            "and contain only letters, numbers and underscores.",
        ),
        "PutMetricAlarm.AlarmName": ALARM_NAME,
        "PutCompositeAlarm.AlarmName": ALARM_NAME,
        **{f"{operation}.{member}[]": ARN for operation in ("PutMetricAlarm", "PutCompositeAlarm") for member in ACTIONS},
        "PutMetricAlarm.TreatMissingData": _unsupported("breaching", "notBreaching", "ignore", "missing"),
        "PutMetricAlarm.EvaluateLowSampleCountPercentile": _unsupported("evaluate", "ignore"),
        "PutCompositeAlarm.ActionsSuppressorWaitPeriod": Limit(min=0, text="{name} must be {min} or greater."),
        "PutCompositeAlarm.ActionsSuppressorExtensionPeriod": Limit(min=0, text="{name} must be {min} or greater."),
        "PutDashboard.DashboardName": Limit(
            pattern="[A-Za-z0-9_-]{1,255}",
            code="DashboardInvalidInputError",
            text="The value {value} for field DashboardName contains invalid characters. "
            "It can only contain alphanumerics, dash (-) and underscore (_).",
        ),
        "DeleteDashboards.DashboardNames": Limit(max=100),
    },
)
