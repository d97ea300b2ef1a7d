"""Helpers for programs that process many items. They need only boto3, so they also run on AWS.

`QueueWorker` receives messages of an SQS queue and passes batches of them, with their S3 objects, to a function. `share` and
`share_of_list_file` return the items that one child of an AWS Batch array job processes.
"""

from .array_share import item_key, share, share_of_list_file
from .errors import WorkerError
from .items import Batch, Item, S3Object
from .queue_worker import QueueWorker
from .worker_metrics import Totals

__all__ = [
    "Batch",
    "Item",
    "QueueWorker",
    "S3Object",
    "Totals",
    "WorkerError",
    "item_key",
    "share",
    "share_of_list_file",
]
