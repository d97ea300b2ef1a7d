"""The operations of Systems Manager, and who serves them."""

from corral.services.ssm import labels, listing, parameters, sessions, tags

HANDLERS = {
    "PutParameter": parameters.put_parameter,
    "GetParameter": parameters.get_parameter,
    "GetParameters": parameters.get_parameters,
    "GetParameterHistory": parameters.get_parameter_history,
    "DeleteParameter": parameters.delete_parameter,
    "DeleteParameters": parameters.delete_parameters,
    "GetParametersByPath": listing.get_parameters_by_path,
    "DescribeParameters": listing.describe_parameters,
    "LabelParameterVersion": labels.label_parameter_version,
    "UnlabelParameterVersion": labels.unlabel_parameter_version,
    "AddTagsToResource": tags.add_tags_to_resource,
    "RemoveTagsFromResource": tags.remove_tags_from_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
    "ResumeSession": sessions.resume_session,
}
