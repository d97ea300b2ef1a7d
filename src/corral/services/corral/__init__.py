"""Corral's own operations: what the command `corral` shows and changes, and AWS's APIs do not have.

The model of the service is `aws/data/corral/`. It has the form of botocore's models, so boto3 can use it, too (docs/own-api.md).
"""
