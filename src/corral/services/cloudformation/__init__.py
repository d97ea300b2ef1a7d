"""CloudFormation: stacks, change sets, and the resource types of templates."""
