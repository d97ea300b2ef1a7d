"""The errors that a client of Corral's API or a user of its command can see.

ApiError                    an error in a request; only aws/ converts it to a response
├── ...                     one subclass per AWS error code, from botocore's models (`aws/error_classes.py`) or `api_error(code)`
└── InternalFailure         a bug of Corral; the caller may retry
Refused                     Corral refuses to start, or refuses a command; the message says what the user must do
"""

from __future__ import annotations


class ApiError(Exception):
    """An error response. The class has the AWS error code, so that boto3 raises `client.exceptions.<code>`."""

    code: str = "ClientException"
    status: int = 400

    def __init__(self, message: str, **members: object) -> None:
        super().__init__(message)
        self.message = message
        self.members = members  # members of the error response other than the message
        self.headers: dict[str, str] = {}  # headers of the error response; only errors of S3 have any


def api_error(code: str, status: int = 400) -> type[ApiError]:
    """Create the exception class for one AWS error code."""
    return type(code, (ApiError,), {"code": code, "status": status})


# Messages of S3 errors. Both the constraint table (aws/) and the handlers (services/) raise them.
S3_INVALID_ENCRYPTION = "The encryption method specified is not supported"
S3_INVALID_STORAGE_CLASS = "The storage class you specified is not valid"
S3_INVALID_TAG_KEY = "The TagKey you have provided is invalid"
S3_MALFORMED_XML = "The XML you provided was not well-formed or did not validate against our published schema"
S3_UNKNOWN_ACL = "The canned ACL is unknown."

InternalFailure = api_error("InternalFailure", 500)
ServiceUnavailable = api_error("ServiceUnavailable", 503)


def internal_failure() -> ApiError:
    """Create the error response for a bug of Corral. Its message contains no internal details."""
    return InternalFailure("Corral failed on this request; its log has the details.")


def forget_frames(error: BaseException) -> None:
    """Let an exception that was caught, and is kept, no longer refer to the frames through which it was raised.

    A frame that has the exception in a variable would be part of a cycle. The cycle would keep all variables of these frames, for
    example the body of a request, in memory until the garbage collector runs.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None


class Refused(Exception):
    """Corral refuses to start, or refuses a command such as `corral restore`. The message says what the user must do."""
