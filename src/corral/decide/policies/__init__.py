"""IAM policies and filter policies."""
