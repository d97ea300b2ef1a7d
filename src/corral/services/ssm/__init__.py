"""AWS Systems Manager: the Parameter Store, and an operation that AWS's session-manager-plugin calls."""
