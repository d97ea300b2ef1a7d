"""The operations of CloudTrail and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.cloudtrail import events

HANDLERS = handlers_in("cloudtrail", globals())
HEAVY = frozenset({"LookupEvents"})
