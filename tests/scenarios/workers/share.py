"""A child of an array job: like share.sh, but with the helper of corral.worker."""

import os
from pathlib import Path

import boto3

from corral.worker import share_of_list_file

started = Path("/proc/uptime").read_text().split()[0]
items = share_of_list_file()
ended = Path("/proc/uptime").read_text().split()[0]
variables = os.environ
key = f"results/{variables['CORRAL_PIPELINE_STEP']}/{variables.get('AWS_BATCH_JOB_ARRAY_INDEX', 0)}/{variables['AWS_BATCH_JOB_ID']}"
boto3.client("s3").put_object(Bucket="pipeline-data", Key=key, Body="\n".join([f"{started} {ended} ", *items, ""]).encode())
