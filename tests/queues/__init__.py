"""SQS without a server, on a virtual clock."""
