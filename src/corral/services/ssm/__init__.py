"""AWS Systems Manager: the Parameter Store, and the operation that AWS's session-manager-plugin needs."""
