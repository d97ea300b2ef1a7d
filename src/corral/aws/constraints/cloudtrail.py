"""The constraints of CloudTrail. Errors have AWS's usual text, except for the size of a page."""

from corral.aws.constraints.tables import ConstraintTable, Limit, usual_wording

TABLE = ConstraintTable(
    usual_wording("ValidationException"),
    {
        "LookupEvents.MaxResults": Limit(
            code="InvalidMaxResultsException", text="The maximum number of results must be between 1 and 50."
        ),
    },
)
