"""The worker of a queue-driven fleet as people write it by hand. A model that waits for a gate stands in for the one on the GPU."""

import hashlib
import json
import os
import time

import boto3

bucket = boto3.resource("s3").Bucket(os.environ.get("BUCKET", "ml-gpu-example"))
queue = boto3.resource("sqs").get_queue_by_name(QueueName=os.environ.get("QUEUE_NAME", "example-gpu-queue"))


def predict(content):
    """Wait until the gate is open, so that a test decides how long a batch takes."""
    while not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)
    return hashlib.sha256(content).hexdigest()


def processImage(file):
    bucket.download_file(file, file)
    with open(file, "rb") as image:
        preds = predict(image.read())
    print("Predicted:", file, preds, os.environ.get("NVIDIA_VISIBLE_DEVICES"), flush=True)
    os.remove(file)


def startWorker():
    while True:
        for message in queue.receive_messages(VisibilityTimeout=8000, MaxNumberOfMessages=10):
            key = json.loads(message.body)["Records"][0]["s3"]["object"]["key"]
            processImage(key)
            message.delete()


startWorker()
