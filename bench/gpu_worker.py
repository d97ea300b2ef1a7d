"""On a machine with an NVIDIA GPU: images of a bucket through a model, by the usual loop and by the worker library.

    python bench/gpu_worker.py [--json FILE]            # needs torch, torchvision and Pillow in the PATH's python3, and boto3
    python bench/gpu_worker.py --model cpu --images 500 --seed-images 100       # a try without a GPU: other work, same path

A ResNet-50 with random weights over 20,000 generated JPEGs: the usual loop (boto3, one image at a time) on the first 2,000, the
worker library on all of them. Fetching (boto3 in several processes), decoding and the model are also measured alone, in the same
run on the same cores: the slowest of them is what a perfect pipeline would reach. At last the model alone as a bare program and as
a task of Corral. Goals: 20 times the loop, 0.8 of the slowest part, 0.99 of the bare program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from gpu_worker_parts import parser
from rows import Row, markdown

from harness import Corral, container, wait_stopped
from sqs_calls import arn

PARTS = Path(__file__).with_name("gpu_worker_parts.py")
LOOP_GOAL, SLOWEST_GOAL, BARE_GOAL = 20.0, 0.8, 0.99
PAIRS = 3
PART_MAX_S = 540.0


class Measurement:
    def __init__(self, corral: Corral, options: Any) -> None:
        self._corral = corral
        self._options = options
        self._common = ["--model", options.model, "--batch", str(options.batch), "--threads", str(options.threads)]
        self._common += ["--width", str(options.width), "--height", str(options.height)]
        self.figures: dict[str, dict[str, float]] = {}

    def part(self, part: str, name: str | None = None, **arguments: Any) -> float:
        """Run one part as a process; its rate."""
        arguments = {"processes": self._options.processes, "images": self._options.images, **arguments}
        words = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
        environment = self._corral.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        command = [self._options.python, str(PARTS), part, *self._common, *words]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=PART_MAX_S)
        if done.returncode:
            raise SystemExit(f"{part} ended with exit code {done.returncode}")
        return self._note(name or part, done.stdout.splitlines())

    def task(self, name: str) -> float:
        """Run the model alone as a task of Corral with one GPU; its rate."""
        ecs, logs = self._corral.client("ecs"), self._corral.client("logs")
        command = [self._options.python, str(PARTS), "model", *self._common]
        gpus = 0 if self._options.model == "cpu" else 1
        environment = [{"name": "PYTHONPATH", "value": os.environ.get("PYTHONPATH", "")}]
        definition = container(command, gpus, "model", environment=environment)
        ecs.register_task_definition(family="model", containerDefinitions=[definition])
        task = ecs.run_task(taskDefinition="model")["tasks"][0]
        [done] = wait_stopped(ecs, [task["taskArn"]], within_s=PART_MAX_S)
        stream = f"model/main/{task['taskArn'].rpartition('/')[2]}"
        page = logs.get_log_events(logGroupName="/tests", logStreamName=stream, startFromHead=True)
        output = [event["message"] for event in page["events"]]
        assert done["containers"][0]["exitCode"] == 0, output
        return self._note(name, output)

    def _note(self, name: str, lines: list[str]) -> float:
        found = json.loads(next(line for line in lines if line.startswith("RESULT "))[7:])
        self.figures[name] = found
        print(f"{name}: " + ", ".join(f"{key} {value:,.2f}" for key, value in found.items()), flush=True)
        return found["per_s"]


def bucket_with_queue(corral: Corral, name: str) -> dict[str, str]:
    """A bucket whose events go to a queue with a dead-letter queue."""
    s3, sqs = corral.client("s3"), corral.client("sqs")
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": arn(dead), "maxReceiveCount": 3})
    statement = {"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    url = sqs.create_queue(QueueName=name, Attributes={"RedrivePolicy": redrive, "Policy": policy})["QueueUrl"]
    s3.create_bucket(Bucket=name)
    told = {"QueueArn": arn(url), "Events": ["s3:ObjectCreated:*"]}
    s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"QueueConfigurations": [told]})
    return {"bucket": name, "queue": name}


def measure(corral: Corral, options: Any) -> tuple[list[Row], dict[str, Any]]:
    run, cores = Measurement(corral, options), len(os.sched_getaffinity(0))
    some, every = bucket_with_queue(corral, "loop"), bucket_with_queue(corral, "images")
    run.part("put", "put for the loop", images=options.seed_images, bucket=some["bucket"])
    run.part("put", bucket=every["bucket"])
    loop = run.part("seed", images=options.seed_images, **some)
    alone = {
        "fetch": max(
            run.part("fetch", f"fetch in {count} processes", bucket=every["bucket"], processes=count)
            for count in sorted({options.processes, max(2, cores // 2)})
        ),
        "decode": run.part("decode", processes=cores),
        "model": run.part("model"),
    }
    worker = run.part("worker", **every)
    pairs = [(run.part("model", f"bare {number}"), run.task(f"task {number}")) for number in range(PAIRS)]
    bare, under = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    slowest = min(alone, key=lambda name: alone[name])
    about = run.figures["worker"]
    note = (
        f"{options.processes} processes; batches of {about['batch']:.0f}; {about['predict_busy']:.0%} of the time in predict; "
        f"first batch after {about['start_s']:.2f} s"
    )
    rows = [
        Row("images/s by the worker library", worker, "/s", loop, "the usual loop", LOOP_GOAL * loop, note),
        Row("the same", worker, "/s", alone[slowest], f"{slowest} alone, the slowest part", SLOWEST_GOAL * alone[slowest]),
        *(Row(f"{name} alone", None, "/s", rate, f"{cores} cores") for name, rate in alone.items()),
        Row("the model as a task of Corral", under, "/s", bare, "a bare program", BARE_GOAL * bare, f"best of {PAIRS}"),
    ]
    return rows, {"figures": run.figures, "alone": alone, "loop": loop, "worker": worker, "bare": bare, "under": under}


def main() -> None:
    made = parser()
    made.add_argument("--seed-images", type=int, default=2_000)
    made.add_argument("--python", default="python3", help="has torch, torchvision, Pillow and boto3")
    made.add_argument("--json", type=Path)
    options = made.parse_args()
    python = sys.executable if options.model == "cpu" else shutil.which(options.python)
    if python is None:
        raise SystemExit(f"{options.python} is not on the PATH: pass --python")
    options.python = python
    with tempfile.TemporaryDirectory() as folder:
        corral = Corral(Path(folder) / "data", "none" if options.model == "cpu" else "auto").start()
        try:
            rows, figures = measure(corral, options)
        finally:
            corral.clear()
    print(markdown(rows))
    document = json.dumps({"rows": [asdict(row) for row in rows], **figures})
    if options.json is not None:
        options.json.write_text(document)
    print(document)


if __name__ == "__main__":
    main()
