"""Rules of IAM that the constraint table (`aws/constraints/iam.py`) and the services share."""

NAME_CHARACTERS = r"[\w+=,.@-]"
INVALID_NAME = (  # the text of AWS's error message
    "The specified value for {member} is invalid. It must contain only alphanumeric characters and/or the following: +=,.@_-"
)
SESSION_MIN_S, SESSION_MAX_S = 3600, 43_200  # limits of a role's MaxSessionDuration; the minimum is also its default
