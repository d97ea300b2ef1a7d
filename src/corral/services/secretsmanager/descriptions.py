"""The description of a secret, in the form of DescribeSecret."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.secret import StoredSecret
from corral.operations.tags import TagRules
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.secret_names import named
from corral.store import Store

TAG_RULES = TagRules(
    errors.InvalidParameterException,
    errors={"count": errors.LimitExceededException},
    texts={"count": "A secret can have at most {max} tags."},
)


def description(tx: Tx[Store], caller: Caller, secret: StoredSecret) -> dict[str, Any]:
    """Describe a secret without its values. Members without a value are None, and the response omits them."""
    staged = [each for each in tx.store.secrets.versions(secret.region, secret.name) if each.stages]
    return {
        **named(caller, secret),
        **secret.details,
        "LastChangedDate": secret.changed_at_s,
        "LastAccessedDate": secret.accessed_at_s,
        "DeletedDate": secret.delete_at_s,
        "Tags": None if secret.tags is None else TAG_RULES.to_list(secret.tags),
        "VersionIdsToStages": {each.id: list(each.stages) for each in staged} or None,
        "CreatedDate": secret.created_at_s,
    }
