"""The constraints of STS. Errors have AWS's usual text."""

from corral.aws.constraints.tables import ConstraintTable, usual_wording

TABLE = ConstraintTable(usual_wording("ValidationError"))
