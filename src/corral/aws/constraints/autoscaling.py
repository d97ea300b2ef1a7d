"""Constraints on the parameters of Auto Scaling's operations. All of them come from botocore's model."""

from corral.aws.constraints.tables import ConstraintTable, usual_wording

TABLE = ConstraintTable(usual_wording("ValidationError"))
