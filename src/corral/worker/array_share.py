"""The share of one child of an AWS Batch array job: which items of a list the child processes.

An array job runs the same program in N children. Child I gets the items with the indexes from N_ITEMS * I // N up to, but not
including, N_ITEMS * (I + 1) // N. So every item belongs to exactly one child, the order is kept, and the sizes of two shares differ
by at most one.

When failed children are submitted again as a smaller array, the environment variable CORRAL_ARRAY_INDEXES has the indexes of these
children in the original array, and ARRAY_SIZE has the size of the original array. Child I of the smaller array uses the element I
of CORRAL_ARRAY_INDEXES as its index.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .errors import WorkerError, code_of, explained, retried
from .queue_lookup import client

T = TypeVar("T")

INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
SIZE = "AWS_BATCH_JOB_ARRAY_SIZE"
WHOLE_SIZE = "ARRAY_SIZE"
INDEXES = "CORRAL_ARRAY_INDEXES"
LIST_FILE = "LIST_FILE_S3_PATH"
CHILDREN_MAX = 1_000_000  # Batch allows 10,000
LIST_MAX_BYTES = 256 * 1024 * 1024
READABLE_MAX = 80  # maximum number of characters of an item in its key, and of a value in an error message
RETRY_S = 60.0


def share(items: Iterable[T], *, index: int | None = None, size: int | None = None) -> list[T]:
    """Return the items of one child, in their order. If the job is not an array job, return all items.

    `index` and `size` default to the values in the environment of the job.
    """
    if (index is None) != (size is None):
        raise WorkerError(f"share: index is {index} and size is {size}: pass both, or neither to use those of the job.")
    at, of = _place(os.environ) if index is None or size is None else _checked(index, size, "index", "size")
    every = items if isinstance(items, list) else list(items)
    return every[len(every) * at // of : len(every) * (at + 1) // of]


def share_of_list_file(*, results: str | None = None, result_key: Callable[[str], str] | None = None) -> list[str]:
    """Return this child's lines of the list file at LIST_FILE_S3_PATH, without empty lines.

    With `results`, an address `s3://BUCKET/PREFIX`, leave out the lines whose result exists: the object with the key PREFIX +
    `result_key(line)`. The default of `result_key` is `item_key`.
    """
    wanted = share(_lines(_required(os.environ, LIST_FILE)))
    if results is None or not wanted:
        return wanted
    bucket, prefix = _parsed(results, "results")
    key_of = result_key or item_key
    keys = [prefix + key_of(line) for line in wanted]
    done = existing(keys, lambda after: _results(bucket, prefix, after))
    return [line for line, key in zip(wanted, keys) if key not in done]


def item_key(item: str) -> str:
    """Return a key for the result of an item: the item in readable characters, and a hash that makes the key unique."""
    readable = re.sub(r"[^A-Za-z0-9._=-]+", "_", item).strip("_.")[-READABLE_MAX:]
    return f"{readable}-{hashlib.sha256(item.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


# The place of this child in the original array


def _place(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the index of this child in the original array, and the size of that array. Return (0, 1) if there is no array."""
    index, size, whole = (_number(environment, name) for name in (INDEX, SIZE, WHOLE_SIZE))
    if environment.get(INDEXES):
        return _replaced(environment[INDEXES], index or 0, whole)
    if index is None:
        if whole is not None and whole > 1:
            raise WorkerError(
                f"{WHOLE_SIZE}={whole}, but {INDEX} is not set, so {whole - 1} of {whole} shares would have no child. Submit an "
                f"array job (arrayProperties.size={whole}), or do not set {WHOLE_SIZE}."
            )
        return 0, 1
    if whole is not None and size is not None and whole != size:
        raise WorkerError(
            f"{WHOLE_SIZE}={whole}, but this array has {size} children ({SIZE}). Items would be lost or processed twice. Set "
            f"{WHOLE_SIZE}={size}, or do not set it."
        )
    of, name = (whole, WHOLE_SIZE) if whole is not None else (size, SIZE)
    if of is None:
        raise WorkerError(
            f"{INDEX}={index}, but neither {WHOLE_SIZE} nor {SIZE} is set: set {WHOLE_SIZE} to the size of the array."
        )
    return _checked(index, of, INDEX, name)


def _replaced(text: str, position: int, whole: int | None) -> tuple[int, int]:
    """Return the original index of the child at a position of the smaller array, and the size of the original array."""
    if whole is None:
        raise WorkerError(f"{INDEXES} is set, but {WHOLE_SIZE} is not: set {WHOLE_SIZE} to the size of the original array.")
    left = position
    for first, last in _ranges(text, whole):
        if left <= last - first:
            return _checked(first + left, whole, INDEXES, WHOLE_SIZE)
        left -= last - first + 1
    raise WorkerError(
        f"{INDEXES}={_short(text)} has {position - left} indexes, but {INDEX} is {position}. Submit as many children as there are "
        "indexes."
    )


def _ranges(text: str, whole: int) -> list[tuple[int, int]]:
    """Parse a text such as `3,7,12-15`: indexes and ranges of indexes, in ascending order."""
    found: list[tuple[int, int]] = []
    for word in text.split(","):
        matched = re.fullmatch(r"\s*(\d{1,7})\s*(?:-\s*(\d{1,7})\s*)?", word, re.ASCII)
        first = int(matched[1]) if matched else -1
        last = int(matched[2] or matched[1]) if matched else -1
        if not (found[-1][1] if found else -1) < first <= last < whole:
            raise WorkerError(
                f"{INDEXES}={_short(text)}: {_short(word)!r} is not valid. Use indexes below {WHOLE_SIZE}={whole} in ascending "
                "order, for example 3,7,12-15."
            )
        found.append((first, last))
    return found


def _checked(index: int, size: int, index_name: str, size_name: str) -> tuple[int, int]:
    if not 1 <= size <= CHILDREN_MAX:
        raise WorkerError(f"{size_name}={size} is not valid: it must be from 1 to {CHILDREN_MAX:,}.")
    if not 0 <= index < size:
        raise WorkerError(f"{index_name}={index} is not valid: with {size_name}={size} it must be from 0 to {size - 1}.")
    return index, size


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"\d{1,7}", text, re.ASCII):
        raise WorkerError(f"{name}={_short(text)} is not valid: it must be a whole number from 0 to {CHILDREN_MAX:,}.")
    return int(text)


def _required(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise WorkerError(f"{name} is not set: set it to the address of the list file, for example s3://BUCKET/list.txt.")
    return environment[name]


def _short(text: str) -> str:
    return text if len(text) <= READABLE_MAX else text[:READABLE_MAX] + "..."


# The list file and the results in S3


def _lines(url: str) -> list[str]:
    bucket, key = _parsed(url, LIST_FILE)
    if not key:
        raise WorkerError(
            f"{LIST_FILE}={url} has no key: set it to the address of the list file, for example s3://BUCKET/list.txt."
        )
    content = _asked(f"The list file {url} cannot be read", lambda s3: _content(s3, bucket, key, url))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WorkerError(f"The list file {url} is not valid UTF-8 ({error}): write one item per line, as UTF-8 text.") from None
    return [line for each in text.split("\n") if (line := each.strip())]


def _content(s3: Any, bucket: str, key: str, url: str) -> bytes:
    found = s3.get_object(Bucket=bucket, Key=key)
    if found["ContentLength"] > LIST_MAX_BYTES:
        raise WorkerError(
            f"The list file {url} has {found['ContentLength']:,} bytes; at most {LIST_MAX_BYTES:,} are possible. Divide the "
            "list into several files and submit one job for each, or write shorter items."
        )
    return bytes(found["Body"].read())


def _results(bucket: str, prefix: str, after: str) -> tuple[list[str], bool]:
    """Return keys greater than `after` under a prefix, at most 1,000 in ascending order, and whether there are more."""
    page = _asked(
        f"The results in s3://{bucket}/{prefix} cannot be listed",
        lambda s3: s3.list_objects_v2(Bucket=bucket, Prefix=prefix, StartAfter=after),
    )
    return [each["Key"] for each in page.get("Contents", ())], bool(page.get("IsTruncated"))


def existing(keys: Iterable[str], page_after: Callable[[str], tuple[list[str], bool]]) -> set[str]:
    """Return the keys that exist. `page_after` lists existing keys, as `_results` does.

    Each page begins at the next wanted key. So the number of requests is at most about the number of wanted keys, and at most about
    the number of pages under the prefix.
    """
    wanted, found, at, after = sorted(set(keys)), set[str](), 0, ""
    while at < len(wanted):
        after = max(after, wanted[at][:-1])  # the page begins after this text, and a key sorts after its own beginning
        page, has_more = page_after(after)
        found.update(page)
        if not has_more:
            break
        after = page[-1]
        while at < len(wanted) and wanted[at] <= after:
            at += 1
    return found & set(wanted)


def _asked(what: str, call: Callable[[Any], T]) -> T:
    """Send a request to S3. Retry it while errors are transient. Raises WorkerError if it fails."""
    try:
        s3 = client("s3", None)
        return retried(what, lambda: call(s3), threading.Event(), RETRY_S)
    except WorkerError:
        raise
    except Exception as error:
        if code_of(error) in ("NoSuchBucket", "NoSuchKey"):
            advice = "Correct the address, or create the bucket (aws s3 mb) and the object (aws s3 cp)."
            raise WorkerError(f"{what}: {error} {advice}") from error
        raise explained(what, error) from error


def _parsed(url: str, name: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise WorkerError(f"{name}={_short(url)} is not valid: it must have the form s3://BUCKET/KEY.")
    return bucket, key
