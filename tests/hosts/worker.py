"""A task of the lab: it uses AWS as a user's program does, without settings, and counts its work in its log and in a bucket."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.request

import boto3
from botocore.config import Config

BUCKET, NAME = sys.argv[1:]
s3 = boto3.client("s3", config=Config(retries={"max_attempts": 10, "mode": "standard"}))


def facts() -> dict[str, object]:
    """What this host shows to its tasks: role credentials, a large object, a presigned URL, and the metadata of the task."""
    large = os.urandom(3 * 1024 * 1024)
    s3.put_object(Bucket=BUCKET, Key=f"{NAME}/large", Body=large)
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": f"{NAME}/large"})
    with (
        urllib.request.urlopen(url) as response,
        urllib.request.urlopen(f"{os.environ['ECS_CONTAINER_METADATA_URI_V4']}/task") as task,
    ):
        return {
            "host": socket.gethostname(),
            "endpoint": os.environ["AWS_ENDPOINT_URL"],
            "role": boto3.client("sts").get_caller_identity()["Arn"],
            "large": response.read() == large == s3.get_object(Bucket=BUCKET, Key=f"{NAME}/large")["Body"].read(),
            "metadata": json.load(task)["TaskARN"],
        }


def print_lines() -> None:
    number = 0
    while not is_stopping.is_set():
        print(f"line {number}", flush=True)
        number += 1
        time.sleep(0.05)
    print(f"lines {number}", flush=True)


print(json.dumps(facts()), flush=True)
is_stopping = threading.Event()
printing = threading.Thread(target=print_lines)
printing.start()
done = 0
while not s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{NAME}/stop")["KeyCount"]:
    s3.put_object(Bucket=BUCKET, Key=f"{NAME}/done/{done:06}", Body=b"")
    done += 1
    time.sleep(0.1)
is_stopping.set()
printing.join()
print(f"objects {done}", flush=True)
