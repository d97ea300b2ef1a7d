"""Rules of IAM that the constraint table (`aws/constraints/iam.py`) and the services share."""

NAME_CHARACTERS = r"[\w+=,.@-]"
INVALID_NAME = (  # AWS's text
    "The specified value for {member} is invalid. It must contain only alphanumeric characters and/or the following: +=,.@_-"
)
SESSION_MIN_S, SESSION_MAX_S = 3600, 43_200  # of a role's MaxSessionDuration; the former is its default
