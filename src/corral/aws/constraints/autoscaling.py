"""Auto Scaling: the model's constraints in AWS's usual wording."""

from corral.aws.constraints.tables import ConstraintTable, usual_wording

TABLE = ConstraintTable(usual_wording("ValidationError"))
