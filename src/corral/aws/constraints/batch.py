"""Constraints on the parameters of AWS Batch's operations. Batch has one error code for all violated constraints.

The handlers check the states and types of job queues, the states and actions of their time limits, and the actions of retry
strategies. Their error texts also say what to do.
"""

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, usual_wording

HANDLER = Unchecked("the handler checks it, with a text that says what to do")

TABLE = ConstraintTable(
    usual_wording("ClientException"),
    {
        ":JQState": HANDLER,
        ":JobQueueType": HANDLER,
        ":JobStateTimeLimitActionsAction": HANDLER,
        ":JobStateTimeLimitActionsState": HANDLER,
        ":RetryAction": HANDLER,  # AWS ignores the case of this value
        ":TagrisTagsMap": Limit(min=0),  # AWS accepts an empty map of tags
    },
)
