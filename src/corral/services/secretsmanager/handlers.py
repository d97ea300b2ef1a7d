"""The operations of Secrets Manager and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.secretsmanager import listing, passwords, resource_policies, rotation, secrets, values, versions

HANDLERS = handlers_in("secretsmanager", globals())
