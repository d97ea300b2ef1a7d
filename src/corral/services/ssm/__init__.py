"""AWS Systems Manager: the Parameter Store, and what the plugin of execute-command asks."""
