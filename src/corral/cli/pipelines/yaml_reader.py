"""Reads a YAML file into nodes. Each node has its line number, so that an error message can name the line.

A `Node` is one value of the file: a mapping, a list or a scalar. A scalar keeps its text as the file has it (`010` stays `010`).
Each check adds a `Problem` (line, what is wrong, how to fix it), so that one run of the command reports all problems of a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, print_message

FILE_MAX_BYTES = 512 * 1024
NODES_MAX = 20_000
DEPTH_MAX = 20
PROBLEMS_MAX = 20  # further problems are counted, not printed
SHOWN_MAX = 60  # characters of a value in a message
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Node:
    line: int
    value: dict[str, Node] | list[Node] | str | None  # None: the file has no value after the key
    quoted: bool = False  # a scalar in quotes or in a block: never a number

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.value, str)

    def shown(self) -> str:
        """Return the value, or what kind of value it is, for a message."""
        match self.value:
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case None:
                return "an empty value"
            case text:
                return f"'{text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + '…'}'"


class Problem(NamedTuple):
    line: int
    text: str  # the value, the rule and the fix


class PipelineFileError(CliError):
    """A pipeline file breaks rules. Each problem is printed on its own line, with the file and the line number."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        # Remove duplicates: a problem in `defaults:` is found again for each step.
        self.problems = sorted(dict.fromkeys(problems), key=lambda each: each.line)
        super().__init__("; ".join(self.lines()))

    def lines(self) -> list[str]:
        shown = [f"{self.file}:{each.line}: {each.text}" for each in self.problems[:PROBLEMS_MAX]]
        more = len(self.problems) - len(shown)
        return [*shown, *([f"{self.file} has {count(more, 'more problem')}."] if more else [])]

    def show(self, file: Any = None) -> None:
        for line in self.lines():
            print_message(line)


@dataclass(slots=True)
class Problems:
    """Collects the problems of one file."""

    file: str
    found: list[Problem] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        self.found.append(Problem(line, text))

    def raise_if_any(self) -> None:
        if self.found:
            raise PipelineFileError(self.file, self.found)


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return ` Did you mean X?` if one of the known words is similar, else an empty text."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def read_yaml(file: str, text: str) -> Node:
    """Return the root of the document. Raise PipelineFileError if the text is not one YAML mapping of an acceptable size."""
    import yaml  # imported here, because other commands do not need it

    problems = Problems(file)
    if len(text.encode()) > FILE_MAX_BYTES:
        problems.add(1, f"the file is larger than {FILE_MAX_BYTES:,} bytes. Put long lists into S3, and name them with `list:`.")
        problems.raise_if_any()
    reader = _Reader(problems, yaml)
    try:
        root = reader.document(iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(mark.line + 1 if mark else 1, f"this is not valid YAML: {error.problem or error.context}.")
    except yaml.YAMLError as error:
        problems.add(1, f"this is not valid YAML: {' '.join(str(error).split())}.")
    problems.raise_if_any()
    if not isinstance(root.value, dict):
        problems.add(root.line, f"the file contains {root.shown()}, not a mapping with `name:` and `steps:`.")
    problems.raise_if_any()
    return root


class _Reader:
    """Builds nodes from the parser's events, so that depth, size and aliases are checked before anything is built."""

    def __init__(self, problems: Problems, yaml: Any) -> None:
        self._problems, self._yaml, self._nodes = problems, yaml, 0

    def document(self, events: Iterator[Any]) -> Node:
        yaml, root = self._yaml, Node(1, None)
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root.value is not None:
                    self._problems.add(event.start_mark.line + 1, "a second document begins here. Write one pipeline per file.")
                    return root
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, events, 0)
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        yaml, line = self._yaml, event.start_mark.line + 1
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            what = f"more than {NODES_MAX:,} values" if self._nodes > NODES_MAX else f"values at a depth of more than {DEPTH_MAX}"
            self._problems.add(line, f"the file has {what}. A pipeline cannot be that large.")
            self._problems.raise_if_any()
        if isinstance(event, yaml.AliasEvent):
            self._problems.add(
                line, f"'*{event.anchor}' is an alias, which pipelines do not have. Put shared values under `defaults:`."
            )
            return Node(line, None)
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style in (None, "")
            return Node(line, None if plain and event.value in ("", "~", "null") else event.value, quoted=not plain)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                items.append(self._node(inner, events, depth + 1))
            return Node(line, items)
        return Node(line, self._mapping(events, depth))

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(key := next(events), self._yaml.MappingEndEvent):
            name = self._node(key, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if not isinstance(name.value, str):
                self._problems.add(name.line, f"{name.shown()} is not a key. Write keys as plain text.")
            elif name.value in found:
                self._problems.add(name.line, f"the key '{name.value}' appears twice. Remove one of them.")
            else:
                # A block of values begins on the line after its key. An error about the block names the key's line.
                found[name.value] = value if value.is_scalar else Node(name.line, value.value)
        return found


def substitute(node: Node, values: dict[str, str], problems: Problems) -> Node:
    """Replace each `{{name}}` in all scalars by the value of this parameter. Other text in braces stays as it is."""
    match node.value:
        case dict() as mapping:
            return Node(node.line, {key: substitute(value, values, problems) for key, value in mapping.items()})
        case list() as items:
            return Node(node.line, [substitute(value, values, problems) for value in items])
        case str() as text if "{{" in text:
            for name in dict.fromkeys(_PLACEHOLDER.findall(text)):
                if name not in values:
                    problems.add(
                        node.line, f"'{{{{{name}}}}}' names no parameter. Declare it under `parameters:`.{suggestion(name, values)}"
                    )
            replaced = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
            return Node(node.line, replaced, node.quoted)
    return node
