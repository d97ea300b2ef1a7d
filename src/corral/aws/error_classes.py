"""The classes of a service's errors, from the error shapes in botocore's model of the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.aws.models import error_shape, service_model
from corral.core.errors import ApiError


class ModelledError(ApiError):
    """An error that the model of a service has. The model also has its HTTP status."""

    service: str

    @property
    def status(self) -> int:  # type: ignore[override]  # not an attribute of the class, because to load a model takes time
        shape = error_shape(service_model(self.service, ""), self.code)
        assert shape is not None, f"the model of {self.service} has no error {self.code}"
        return int(shape.error.get("httpStatusCode") or (500 if shape.is_fault else 400))


def error_classes(service: str, module: dict[str, Any]) -> Callable[[str], type[ApiError]]:
    """Return the function `__getattr__` of the module `core/errors.py` of a service. The module then has all errors of the model.

    For example, `from corral.services.ecr.errors import ImageNotFoundException` creates the class of this error. The module itself
    declares the errors that the model lacks.
    """

    def error_class(code: str) -> type[ApiError]:
        if not code[0].isupper():
            raise AttributeError(code)
        created: type[ApiError] = module.setdefault(code, type(code, (ModelledError,), {"code": code, "service": service}))
        return created

    return error_class
