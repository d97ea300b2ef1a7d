"""Checks the length, range, enum and pattern constraints of requests.

botocore's model states which values an operation accepts. The service's table (`ecs.py`, `sqs.py`, ...) states the error code and
text of a violation, and corrects the model where AWS's documentation differs. `check.py` compiles both into one function per
operation that has constraints.
"""

from corral.aws.constraints.check import Check, compile_check
from corral.aws.constraints.tables import table_of

__all__ = ["Check", "compile_check", "table_of"]
