"""The errors of AWS Batch. All errors of requests have the same code: ClientException."""

from corral.core.errors import ApiError, api_error

ClientException = api_error("ClientException")

EXISTS = "Object already exists"  # AWS's text, for every kind of resource


def missing(kind: str, given: str) -> ApiError:
    """Return the error for a resource that does not exist. `kind` is the kind in the ARN, such as "job-queue"."""
    return ClientException(f"{kind.replace('-', ' ').capitalize()} {given} does not exist.")


def refused(member: str, value: object, rule: str) -> ApiError:
    """Return the error for a request member with a value that breaks a rule. `rule` is a sentence that also says what to do."""
    return ClientException(
        f"{member} {value!r} is not valid: {rule}" if isinstance(value, str) else f"{member} {value} is not valid: {rule}"
    )
