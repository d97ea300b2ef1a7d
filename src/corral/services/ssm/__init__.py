"""AWS Systems Manager: the Parameter Store, and ResumeSession, which AWS's session-manager-plugin calls."""
