"""STS: the model's constraints in AWS's usual wording."""

from corral.aws.constraints.terms import Table, usual

TABLE = Table(usual("ValidationError"))
