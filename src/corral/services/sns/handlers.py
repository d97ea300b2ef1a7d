"""The operations of SNS and their handlers. A program in a container needs a policy for all of them."""

from corral.aws.handlers import handlers_in
from corral.services.sns import publish, subscriptions, topics

HANDLERS = handlers_in("sns", globals())
STEPS = {"Publish": publish.publish, "PublishBatch": publish.publish_batch}
