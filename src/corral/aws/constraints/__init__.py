"""Length, range, enum and pattern constraints on requests, from botocore's models and one table per service.

The model says which values an operation takes. A service's table (`ecs.py`, `sqs.py`, ...) says which error code and text a
violation gets, and corrects the model where AWS's documentation says something else. `check.py` compiles both into one function
per operation; an operation without constraints has none.
"""

from corral.aws.constraints.check import Check, compile_check
from corral.aws.constraints.tables import table_of

__all__ = ["Check", "compile_check", "table_of"]
