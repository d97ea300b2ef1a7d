"""The programs that `bench/gpu_worker.py` runs as processes. Each prints one line: RESULT and a JSON object.

    python bench/gpu_worker_parts.py PART --model resnet50|cpu ...

`cpu` replaces the model, the images and their decoding by work without packages, to try the benchmark without a GPU.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

SIDE = 224
CLASSES = 1000
VARIANTS = 64  # images that differ; objects repeat them
RING = 4  # buffers for batches on their way to the GPU
MODEL_MIN_S = 4.0
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image(number: int, options: argparse.Namespace) -> bytes:
    """A JPEG with structure at several scales, as photographs have; about a quarter of a byte per pixel."""
    if options.model == "cpu":
        return random.Random(number % VARIANTS).randbytes(20_000)
    import numpy
    from PIL import Image

    dice = numpy.random.default_rng(number % VARIANTS)
    whole = numpy.zeros((options.height, options.width, 3))
    for cells, weight in ((4, 90), (16, 50), (64, 20)):
        noise = Image.fromarray(dice.integers(0, 256, (cells, cells, 3), dtype=numpy.uint8))
        scaled = noise.resize((options.width, options.height), Image.Resampling.BICUBIC)
        whole += (numpy.asarray(scaled, dtype=float) - 128) / 128 * weight
    file = io.BytesIO()
    Image.fromarray((whole + 128).clip(0, 255).astype(numpy.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def decoded(data: bytes, model: str) -> Any:
    """A JPEG as an array of 224 × 224 × 3 bytes."""
    if model == "cpu":
        return bytearray(zlib.decompress(zlib.compress(data, 1)))
    import numpy
    from PIL import Image

    with Image.open(io.BytesIO(data)) as opened:
        return numpy.array(opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


class CpuModel:
    """Stands in for the GPU."""

    def upload(self, arrays: list[Any]) -> list[Any]:
        return arrays

    def resident(self, batch: int) -> list[Any]:
        return [bytes(20_000)] * batch

    def forward(self, data: list[Any]) -> list[int]:
        return [zlib.crc32(each) % CLASSES for each in data]

    def wait(self) -> None:
        pass


class GpuModel:
    """ResNet-50 with random weights, in bfloat16. Batches always have the same size: a last, smaller one is padded."""

    def __init__(self, batch: int) -> None:
        import torch
        import torchvision

        self._torch = torch
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        self._batch = batch
        self._model = torchvision.models.resnet50(weights=None, num_classes=CLASSES).eval().cuda().to(torch.bfloat16)
        self._model = self._model.to(memory_format=torch.channels_last)
        self._mean = torch.tensor(MEAN, device="cuda", dtype=torch.bfloat16).view(1, 3, 1, 1) * 255
        self._deviation = torch.tensor(DEVIATION, device="cuda", dtype=torch.bfloat16).view(1, 3, 1, 1) * 255
        shape = (batch, SIDE, SIDE, 3)
        self._pinned = [torch.zeros(shape, dtype=torch.uint8).pin_memory() for _ in range(RING)]
        self._on_gpu = [torch.zeros(shape, dtype=torch.uint8, device="cuda") for _ in range(RING)]
        self._copies = torch.cuda.Stream()
        self._next = 0
        self.forward(self.resident(batch))  # chooses the kernels
        self.wait()

    def upload(self, arrays: list[Any]) -> Any:
        """Copy to the GPU on a stream of its own, while `forward` computes."""
        torch, at = self._torch, self._next
        self._next = (at + 1) % RING
        self._copies.synchronize()  # the last user of this buffer is RING batches ago
        for place, array in zip(self._pinned[at], arrays):
            place.copy_(torch.from_numpy(array))
        with torch.cuda.stream(self._copies):
            self._on_gpu[at].copy_(self._pinned[at], non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        return self._on_gpu[at], copied, len(arrays)

    def resident(self, batch: int) -> Any:
        return self._on_gpu[0], None, batch

    def forward(self, data: Any) -> Any:
        torch = self._torch
        pixels, copied, count = data
        if copied is not None:
            torch.cuda.current_stream().wait_event(copied)
        with torch.inference_mode():
            channels = pixels.permute(0, 3, 1, 2).to(torch.bfloat16)  # channels last already
            return self._model((channels - self._mean) / self._deviation).topk(3).indices[:count]

    def wait(self) -> None:
        self._torch.cuda.synchronize()


def model_of(options: argparse.Namespace) -> Any:
    return CpuModel() if options.model == "cpu" else GpuModel(options.batch)


# Parts


def part_model(options: argparse.Namespace) -> dict[str, float]:
    """The model alone, on data already on the GPU."""
    model = model_of(options)
    data, count = model.resident(options.batch), 0
    for _ in range(10):
        model.forward(data)
    model.wait()
    began = time.perf_counter()
    while time.perf_counter() - began < MODEL_MIN_S:
        for _ in range(20):
            model.forward(data)
            count += options.batch
        model.wait()
    return {"per_s": count / (time.perf_counter() - began)}


def part_fetch(options: argparse.Namespace) -> dict[str, float]:
    """boto3 alone, in several processes."""

    def work(number: int, ready: Any) -> None:
        import boto3

        s3 = boto3.client("s3")
        s3.head_bucket(Bucket=options.bucket)
        ready.wait()
        for key in range(number, options.images, options.processes):
            s3.get_object(Bucket=options.bucket, Key=key_of(key))["Body"].read()

    return {"per_s": options.images / in_processes(options.processes, work)}


def part_decode(options: argparse.Namespace) -> dict[str, float]:
    """Decoding alone, on every core."""
    images = [image(number, options) for number in range(VARIANTS)]

    def work(number: int, ready: Any) -> None:
        decoded(images[0], options.model)
        ready.wait()
        for at in range(number, options.images, options.processes):
            decoded(images[at % VARIANTS], options.model)

    return {"per_s": options.images / in_processes(options.processes, work)}


def part_put(options: argparse.Namespace) -> dict[str, float]:
    """Fill the bucket."""
    images = [image(number, options) for number in range(VARIANTS)]

    def work(number: int, ready: Any) -> None:
        import boto3

        s3 = boto3.client("s3")
        ready.wait()
        for at in range(number, options.images, options.processes):
            s3.put_object(Bucket=options.bucket, Key=key_of(at), Body=images[at % VARIANTS])

    seconds = in_processes(options.processes, work)
    return {"per_s": options.images / seconds, "bytes": sum(map(len, images)) / len(images)}


def part_seed(options: argparse.Namespace) -> dict[str, float]:
    """The usual loop: receive, download to a file, decode, predict one image in full precision, delete."""
    import boto3

    bucket = boto3.resource("s3").Bucket(options.bucket)
    queue = boto3.resource("sqs").get_queue_by_name(QueueName=options.queue)
    predict = one_by_one(options)
    count, began = 0, time.perf_counter()
    while count < options.images:
        for message in queue.receive_messages(VisibilityTimeout=8000, MaxNumberOfMessages=10):
            for record in json.loads(message.body).get("Records", []):
                key = record["s3"]["object"]["key"]
                bucket.download_file(key, key)
                predict(Path(key).read_bytes())
                os.remove(key)
                count += 1
            message.delete()
    return {"per_s": count / (time.perf_counter() - began)}


def one_by_one(options: argparse.Namespace) -> Callable[[bytes], Any]:
    if options.model == "cpu":
        return lambda data: CpuModel().forward([decoded(data, "cpu")])
    import torch
    import torchvision

    model = torchvision.models.resnet50(weights=None, num_classes=CLASSES).eval().cuda()
    mean, deviation = (torch.tensor(each, device="cuda").view(1, 3, 1, 1) * 255 for each in (MEAN, DEVIATION))

    def predict(data: bytes) -> Any:
        with torch.inference_mode():
            pixels = torch.from_numpy(decoded(data, options.model)).cuda().permute(2, 0, 1).unsqueeze(0).float()
            return model((pixels - mean) / deviation).topk(3).indices.tolist()

    predict(image(0, options))
    return predict


def part_worker(options: argparse.Namespace) -> dict[str, float]:
    """The worker library. The rate counts from the end of the first batch to the end of the last one; `start_s` comes before."""
    from corral.worker import Batch, Item, QueueWorker

    model = model_of(options)
    ends: list[tuple[float, int]] = []
    name = options.model

    def decode(item: Item) -> Any:
        return decoded(item.objects[0].data or b"", name)

    def prepare(batch: Batch) -> Any:
        return model.upload([item.data for item in batch])

    def predict(batch: Batch) -> None:
        found = model.forward(batch.prepared)
        if hasattr(found, "cpu"):
            found.cpu()
        ends.append((time.perf_counter(), len(batch)))

    worker = QueueWorker(
        options.queue,
        predict,
        decode=decode,
        prepare=prepare,
        batch_max=options.batch,
        wait_max_s=0.05,
        threads=options.threads,
        processes=options.processes,
        metrics=None,
        once=True,
    )
    began = time.perf_counter()
    totals = worker.run()
    assert totals.done == options.images and not totals.failed, totals
    (first_s, first), (last_s, _) = ends[0], ends[-1]
    return {
        "per_s": (totals.done - first) / (last_s - first_s),
        "start_s": first_s - began,
        "batch": totals.done / totals.batches,
        "predict_busy": totals.predict_seconds / (last_s - began),
    }


def in_processes(count: int, work: Callable[[int, Any], None]) -> float:
    """Run `work(number, ready)` in processes; the seconds from the moment at which all are ready."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(count + 1)
    processes = [context.Process(target=work, args=(number, ready)) for number in range(count)]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    assert all(process.exitcode == 0 for process in processes), [process.exitcode for process in processes]
    return seconds


def key_of(number: int) -> str:
    return f"image-{number:06}.jpg"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--model", choices=["resnet50", "cpu"], default="resnet50")
    made.add_argument("--images", type=int, default=20_000)
    made.add_argument("--batch", type=int, default=256)
    made.add_argument("--width", type=int, default=320)
    made.add_argument("--height", type=int, default=240)
    made.add_argument("--processes", type=int, default=max(2, len(os.sched_getaffinity(0)) - 4))
    made.add_argument("--threads", type=int, default=2)
    return made


def main() -> None:
    made = parser()
    made.add_argument("part", choices=sorted(PARTS))
    made.add_argument("--bucket", default="")
    made.add_argument("--queue", default="")
    options = made.parse_args()
    print("RESULT " + json.dumps(PARTS[options.part](options)), flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "model": part_model,
    "fetch": part_fetch,
    "decode": part_decode,
    "put": part_put,
    "seed": part_seed,
    "worker": part_worker,
}

if __name__ == "__main__":
    main()
