"""The operations of Systems Manager and their handlers."""

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.ssm import listing, parameters
from corral.store import Store


def resume_session(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Answer the session-manager-plugin, which has lost its connection and wants a new token.

    The session ended with the connection, so the response has no token.
    """
    return {"SessionId": params["SessionId"]}


HANDLERS = {
    "PutParameter": parameters.put_parameter,
    "GetParameter": parameters.get_parameter,
    "GetParameters": parameters.get_parameters,
    "GetParameterHistory": parameters.get_parameter_history,
    "DeleteParameter": parameters.delete_parameter,
    "DeleteParameters": parameters.delete_parameters,
    "GetParametersByPath": listing.get_parameters_by_path,
    "DescribeParameters": listing.describe_parameters,
    "LabelParameterVersion": parameters.label_parameter_version,
    "UnlabelParameterVersion": parameters.unlabel_parameter_version,
    "AddTagsToResource": parameters.add_tags_to_resource,
    "RemoveTagsFromResource": parameters.remove_tags_from_resource,
    "ListTagsForResource": parameters.list_tags_for_resource,
    "ResumeSession": resume_session,
}
