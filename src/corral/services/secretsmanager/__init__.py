"""AWS Secrets Manager: secrets with versions and staging labels. Replication is not served, and rotation is stored only."""
