"""Who may do what: the caller of an operation, temporary credentials, and the policies of roles."""
