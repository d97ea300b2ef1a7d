"""Queue options of a task: tags of RunTask in the namespace `corral:` that say when the task may start.

Each option is a tag of the task:

- `corral:priority`: a whole number from -1000 to 1000. Tasks with a higher number start first. The default is 0.
- `corral:hold`: `true`. The task does not start until the tag is removed, or its value is `false`.
- `corral:not-before`: seconds since the epoch. The task does not start before this time.
- `corral:after`: task ids and `array:ID`, separated by spaces. The task starts when all of them have ended with exit code 0.
- `corral:after-any`: like `corral:after`, but the exit codes do not matter.
- `corral:array`: `ID FIRST STEP LIMIT`. The tasks of the request are the members FIRST, FIRST + STEP, ... of the array ID. At most
  LIMIT members of the array run at once (0: no limit). The tag of each member has its own index: `ID INDEX 1 LIMIT`.
- `corral:requeue`: how often a new task is launched after the task has failed, or was lost with its host.
- `corral:refuse-unfit`: `true`. RunTask refuses the task if no instance could ever hold it.

A tag value has at most 256 characters. So a longer list continues in the tags `corral:after:2`, `corral:after:3`, and so on, and in
the same way in `corral:after-any:2`.

Corral itself sets two tags: `corral:requeued-as` on a failed task has the id of the task that replaces it, and `corral:requeue-of`
on that task has the id of the first task of the chain of requeues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from corral.model.numbers import whole_number

PRIORITY_TAG = "corral:priority"
HOLD_TAG = "corral:hold"
NOT_BEFORE_TAG = "corral:not-before"
AFTER_TAG = "corral:after"
AFTER_ANY_TAG = "corral:after-any"
ARRAY_TAG = "corral:array"
REQUEUE_TAG = "corral:requeue"
REFUSE_UNFIT_TAG = "corral:refuse-unfit"
REQUEUED_AS_TAG = "corral:requeued-as"
REQUEUE_OF_TAG = "corral:requeue-of"

PREFIX = "corral:"
ARRAY_PREFIX = "array:"  # before the id of an array in AFTER_TAG
PRIORITY_MAX = 1_000
REQUEUES_MAX = 100
TIME_MAX_S = 253_402_300_799  # the last second of the year 9999
NEEDED_MAX = 100  # tasks and arrays that one task can wait for
INDEX_MAX = 2**31 - 1
LIMIT_MAX = 1_000_000
TASK_ID = re.compile(r"[0-9a-f]{32}")
ARRAY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class QueueOptionError(ValueError):
    """The value of a tag breaks the rule for this tag. The text has the value and the rule."""


class ArrayMembers(Struct, frozen=True):
    """The members of an array that one request launches."""

    id: str
    first: int  # the index of the first task of the request
    step: int  # the difference between the indexes of two tasks of the request
    limit: int  # how many members of the array run at once; 0: no limit

    def index(self, at: int) -> int:
        """Return the index of the task with the number `at` in the request. The first task has the number 0."""
        return self.first + at * self.step

    def tag_value(self, at: int) -> str:
        """Return the value of the tag of the task with the number `at`. A request with this tag launches the same member again."""
        return f"{self.id} {self.index(at)} 1 {self.limit}"


class QueueOptions(Struct, frozen=True):
    priority: int = 0
    held: bool = False
    not_before_s: float | None = None
    after: tuple[str, ...] = ()  # task ids and array:ID; each must end with exit code 0
    after_any: tuple[str, ...] = ()  # task ids and array:ID; each must end. No element is also in `after`
    array: ArrayMembers | None = None
    requeues: int = 0  # how many more tasks are launched after failures
    refuse_unfit: bool = False

    @property
    def waits(self) -> bool:
        """Whether a hold, a time or other tasks can delay the start of the task. The limit of an array is not considered."""
        return bool(self.held or self.not_before_s is not None or self.after or self.after_any)


NO_OPTIONS = QueueOptions()


def queue_options(tags: Iterable[Mapping[str, str]], count: int = 1) -> QueueOptions:
    """Read the queue options from the tags of a task. `count` is the number of tasks in the request.

    Raise QueueOptionError if a value is not valid. Tasks without such tags share one object.
    """
    given = {tag["key"]: tag.get("value", "") for tag in tags if tag["key"].startswith(PREFIX)}
    if not given:
        return NO_OPTIONS
    after = _needed(given, AFTER_TAG)
    options = QueueOptions(
        priority=_priority(given),
        held=_is_true(given, HOLD_TAG),
        not_before_s=_not_before_s(given),
        after=after,
        after_any=tuple(each for each in _needed(given, AFTER_ANY_TAG) if each not in after),
        array=_array(given, count),
        requeues=_requeues(given),
        refuse_unfit=_is_true(given, REFUSE_UNFIT_TAG),
    )
    if len(options.after) + len(options.after_any) > NEEDED_MAX:
        raise QueueOptionError(
            f"The tags {AFTER_TAG} and {AFTER_ANY_TAG} name {len(options.after) + len(options.after_any)} tasks and arrays, but a "
            f"task can wait for at most {NEEDED_MAX}: wait for an array (array:ID) instead of each of its tasks."
        )
    return options if options != NO_OPTIONS else NO_OPTIONS


def is_fixed_at_launch(key: str) -> bool:
    """Whether the tag is read only at the launch of a task. A later change of such a tag would have no effect."""
    return key == ARRAY_TAG or _is_list_tag(key, AFTER_TAG) or _is_list_tag(key, AFTER_ANY_TAG)


def _priority(given: Mapping[str, str]) -> int:
    text = given.get(PRIORITY_TAG)
    if text is None:
        return 0
    number = whole_number(text.removeprefix("-"), PRIORITY_MAX)
    if number is None:
        raise _wrong(PRIORITY_TAG, text, f"a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}, for example 10")
    return -number if text.startswith("-") else number


def _is_true(given: Mapping[str, str], tag: str) -> bool:
    text = given.get(tag, "false")
    if text not in ("true", "false"):
        raise _wrong(tag, text, "`true` or `false`")
    return text == "true"


def _not_before_s(given: Mapping[str, str]) -> float | None:
    text = given.get(NOT_BEFORE_TAG)
    if text is None:
        return None
    seconds = whole_number(text, TIME_MAX_S)
    if seconds is None:
        raise _wrong(NOT_BEFORE_TAG, text, "a time in whole seconds since 1970-01-01 00:00:00 UTC, for example 1767225600")
    return float(seconds)


def _requeues(given: Mapping[str, str]) -> int:
    text = given.get(REQUEUE_TAG)
    number = whole_number(text, REQUEUES_MAX) if text is not None else 0
    if number is None:
        raise _wrong(REQUEUE_TAG, text, f"a whole number from 0 to {REQUEUES_MAX}, for example 3")
    return number


def _is_list_tag(key: str, first: str) -> bool:
    return key == first or key.startswith(f"{first}:")


def _needed(given: Mapping[str, str], tag: str) -> tuple[str, ...]:
    """Read the ids in a tag and in the tags that continue it. Repeated ids count once."""
    found: dict[str, None] = {}
    for key, text in given.items():
        if not _is_list_tag(key, tag):
            continue
        if not text.split():
            raise _wrong(key, text, f"task ids or {ARRAY_PREFIX}ID, separated by spaces; if there are none, leave the tag out")
        for word in text.split():
            is_array = word.startswith(ARRAY_PREFIX)
            if not (ARRAY_ID.fullmatch(word.removeprefix(ARRAY_PREFIX)) if is_array else TASK_ID.fullmatch(word)):
                rule = f"a task id (32 hexadecimal digits, the last part of a task's ARN) or {ARRAY_PREFIX}ID"
                raise QueueOptionError(f"The tag {key} has the element '{word}', which must be {rule}.")
            found[word] = None
    return tuple(found)


def _array(given: Mapping[str, str], count: int) -> ArrayMembers | None:
    text = given.get(ARRAY_TAG)
    if text is None:
        return None
    rule = (
        f"`ID FIRST STEP LIMIT`: an id of at most 64 letters, digits, '.', '_' and '-', a first index from 0, a step from 1 and a "
        f"limit from 0 to {LIMIT_MAX}, separated by spaces, for example `a1b2c3 0 1 8`"
    )
    array_id, *numbers = text.split() or [""]
    values = [whole_number(number, INDEX_MAX) for number in numbers]
    if len(values) != 3 or not ARRAY_ID.fullmatch(array_id):
        raise _wrong(ARRAY_TAG, text, rule)
    first, step, limit = values
    if first is None or not step or limit is None or limit > LIMIT_MAX:
        raise _wrong(ARRAY_TAG, text, rule)
    members = ArrayMembers(array_id, first, step, limit)
    if members.index(count - 1) > INDEX_MAX:
        raise _wrong(ARRAY_TAG, text, f"an array whose last index is at most {INDEX_MAX}; the last of {count} tasks exceeds it")
    return members


def _wrong(tag: str, text: str | None, rule: str) -> QueueOptionError:
    return QueueOptionError(f"The tag {tag} has the value '{text}', but it must be {rule}.")
