"""Who takes what another lane hands over: lane, and kind of hand-over (handovers.py)."""

from corral.core import Receiver
from corral.services.cloudwatch.metric_writes import receive_points
from corral.services.scaling import receive_requests

RECEIVERS: dict[str, dict[str, Receiver]] = {
    "state": {"scaling requests": receive_requests},
    "logs": {},
    "metrics": {"points": receive_points},
}
