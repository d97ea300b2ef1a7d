"""AWS STS: temporary credentials and the identity of the caller."""
