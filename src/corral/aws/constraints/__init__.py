"""Checks the length, range, enum and pattern constraints of requests.

botocore's model of a service contains the constraints of each parameter. Most services also have a table in this package (`ecs.py`,
`sqs.py`, ...). The table contains the error codes and texts for violated constraints. The table also replaces constraints of the
model if AWS's documentation differs from the model. For each operation, `check.py` compiles the model and the table into one
function that checks the input.
"""

from corral.aws.constraints.check import Check, compile_check
from corral.aws.constraints.tables import table_of

__all__ = ["Check", "compile_check", "table_of"]
