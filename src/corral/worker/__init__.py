"""A worker for SQS queues. It passes batches of messages with their S3 objects to a function. It also runs on AWS."""

from corral.worker.errors import WorkerError
from corral.worker.items import Batch, Item, S3Object
from corral.worker.queue_worker import QueueWorker
from corral.worker.worker_metrics import Totals

__all__ = ["Batch", "Item", "QueueWorker", "S3Object", "Totals", "WorkerError"]
