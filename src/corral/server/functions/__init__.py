"""The processes of Lambda functions."""
