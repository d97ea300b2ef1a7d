"""The errors of Corral's own operations: one class per error code."""

from collections.abc import Iterator
from contextlib import contextmanager

from corral.aws.error_classes import error_classes
from corral.services.ecs.errors import ClientException, InvalidParameterException

__getattr__ = error_classes("corral", globals())
InvalidRequestException = __getattr__("InvalidRequestException")


@contextmanager
def ecs_refusals() -> Iterator[None]:
    """Raise InvalidRequestException where a function of ECS refuses a value, because Corral's own API has no other code for it."""
    try:
        yield
    except (ClientException, InvalidParameterException) as refusal:
        raise InvalidRequestException(refusal.message) from None
