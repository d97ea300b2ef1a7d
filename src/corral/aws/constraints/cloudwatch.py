from corral.aws.constraints.terms import Table, usual

TABLE = Table(usual("ValidationError"))
