"""A program of a task that uses its credentials until they are refused. Arguments: BUCKET, QUEUE, FILE.

It begins an upload, and ends it only after its requests were refused. It writes what became of each request to FILE, as JSON.
"""

import http.client
import json
import os
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import ClientError

bucket, queue, file = sys.argv[1:]
s3, sqs = (boto3.client(name, endpoint_url=os.environ["AWS_ENDPOINT_URL"]) for name in ("s3", "sqs"))
receipt = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20)["Messages"][0]["ReceiptHandle"]
url = urlsplit(s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "begun"}))
upload = http.client.HTTPConnection(url.hostname, url.port)
upload.putrequest("PUT", f"{url.path}?{url.query}")
upload.putheader("content-length", "8")
upload.endheaders(b"1234")
s3.put_object(Bucket=bucket, Key="ready")


def code(call):
    try:
        call()
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


while not (refused := code(lambda: s3.put_object(Bucket=bucket, Key="late"))):
    time.sleep(0.1)
found = {"put": refused, "delete": code(lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipt))}
try:
    upload.send(b"5678")
    found["upload"] = upload.getresponse().status
except (OSError, http.client.HTTPException) as error:
    found["upload"] = type(error).__name__
Path(f"{file}.new").write_text(json.dumps(found))
Path(f"{file}.new").rename(file)
time.sleep(600)
