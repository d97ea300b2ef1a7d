"""SQS on a clock that stands still until it is told to move."""
