"""Checks the input of an operation against its constraints.

A check has two steps, and both use the constraint tree of `tree.py`. The first step is a generated function, which returns True if
the input violates any constraint. It runs for every request, so it tests the members itself, without a function for each member.
Only large structures (MANY_MEMBERS) and shapes that contain themselves have functions of their own. The second step, `violations`,
runs only if the first step returned True. It finds the violated constraints and their paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from corral.aws.constraints.patterns import matcher, matches
from corral.aws.constraints.tables import ConstraintKind, ConstraintTable, Limit, Violation, constraint_error
from corral.aws.constraints.tree import COMPOUND, SIZED, ConstraintNode, input_node
from corral.aws.shapes import OperationModel

Check = Callable[[dict[str, Any]], None]
MANY_MEMBERS = 16  # for a structure with this many members, the generated code loops over the members in the request


def compile_check(operation: OperationModel, table: ConstraintTable) -> Check | None:
    """Return a function that raises an ApiError if an input violates a constraint. Return None if the input has no constraints."""
    node = input_node(operation, table.limits)
    if node is None:
        return None
    is_violated = compile_test(node)

    def check(params: dict[str, Any]) -> None:
        if is_violated(params):
            raise constraint_error(table, operation.name, violations(node, params))

    return check


# --- find the violations ------------------------------------------------------------------------------------------------


def violations(node: ConstraintNode, value: Any) -> list[Violation]:
    found = [violation for limit in node.limits for violation in _violated(node, limit, value)]
    if found:
        return found  # the members and elements of an invalid value are not checked
    for name in value if node.members else ():
        if name in node.members:
            found += _below(node.members[name], value[name], name)
    if node.element is not None:
        found += _of_many(node.element, value, enumerate(value, 1), "Member must satisfy constraint")
    if node.key is not None:
        found += _of_many(node.key, value, zip(value, value, strict=True), "Map keys must satisfy constraint")
    if node.value is not None:
        found += _of_many(node.value, value, value.items(), "Map value must satisfy constraint")
    return found


def _below(node: ConstraintNode, value: Any, part: str) -> list[Violation]:
    found = violations(node, value)
    for violation in found:
        violation.path.append(part)
    return found


def _of_many(node: ConstraintNode, whole: Any, values: Iterable[tuple[Any, Any]], sentence: str) -> list[Violation]:
    if node.shape.type_name in COMPOUND:
        return [violation for place, each in values for violation in _below(node, each, f"{place}.member")]
    for number, (_, each) in enumerate(values, 1):
        found = violations(node, each)
        if found:
            # AWS's usual error shows the whole list or map and all constraints of its elements. If the table has its own error
            # text, Corral shows only the first invalid element.
            first = found[0]
            first.index = number
            if first.limit.text is None:
                first.value = whole
                rules = [phrase for limit in node.limits for _, phrase, _ in _constraints(node, limit)]
                first.phrase = f"{sentence}: [{', '.join(rules)}]"
            return [first]
    return []


def _violated(node: ConstraintNode, limit: Limit, value: Any) -> list[Violation]:
    location = str(node.shape.serialization.get("location", ""))
    is_displayed = not node.shape.is_sensitive
    return [
        Violation(kind, limit, value, phrase, location, is_displayed)
        for kind, phrase, holds in _constraints(node, limit)
        if not holds(value)
    ]


def _constraints(node: ConstraintNode, limit: Limit) -> list[tuple[ConstraintKind, str, Callable[[Any], bool]]]:
    """Return the constraints of a limit. Each has a kind, AWS's phrase, and a function that returns True if a value is valid."""
    found: list[tuple[ConstraintKind, str, Callable[[Any], bool]]] = []
    if limit.enum is not None:
        phrase = f"Member must satisfy enum value set: [{', '.join(map(str, limit.enum))}]"
        found.append(("enum", phrase, limit.enum.__contains__))
    is_sized = node.shape.type_name in SIZED
    kind: ConstraintKind = "length" if is_sized else "value"
    size: Callable[[Any], float] = (_bytes_of if limit.in_bytes else len) if is_sized else lambda value: value
    if (most := limit.max) is not None:
        found.append((kind, f"Member must have {kind} less than or equal to {most}", lambda value: size(value) <= most))
    if (least := limit.min) is not None:
        found.append((kind, f"Member must have {kind} greater than or equal to {least}", lambda value: size(value) >= least))
    if limit.pattern is not None and (known := matcher(limit.pattern)) is not None:
        phrase = f"Member must satisfy regular expression pattern: {limit.pattern}"
        found.append(("pattern", phrase, lambda value: matches(known, value)))
    return found


def _bytes_of(value: str | bytes) -> int:
    return len(value.encode() if isinstance(value, str) else value)


# --- generate the test -------------------------------------------------------------------------------------------------


def compile_test(node: ConstraintNode) -> Callable[[Any], bool]:
    """Compile a function that returns True if a value violates any limit in the tree."""
    source = _Source()
    source.function(node)
    return source.compiled()


class _Source:
    """Generates Python source code that tests values, and collects the constants for that code."""

    def __init__(self) -> None:
        self._written: list[str] = []  # the lines of the complete functions
        self._lines: list[str] = []  # the lines of the function that is being generated
        self._variables = 0
        self._names: dict[int, str] = {}  # id of a node -> name of its function
        self._by_member: dict[str, dict[str, str]] = {}  # name of a constant -> member -> name of its function
        self._constants: dict[str, Any] = {"bytes_of": _bytes_of}

    def compiled(self) -> Callable[[Any], bool]:
        space = self._constants
        exec(compile("\n".join(self._written), "<constraints>", "exec"), space)
        for constant, functions in self._by_member.items():
            space[constant] = {member: space[function] for member, function in functions.items()}
        first: Callable[[Any], bool] = space["test_0"]
        return first

    def function(self, node: ConstraintNode) -> str:
        """Return the name of the function that tests a node. Generate the function on first use."""
        if id(node) in self._names:
            return self._names[id(node)]
        name = self._names[id(node)] = f"test_{len(self._names)}"
        outer, self._lines = self._lines, []
        self._value(node, "v", 1, (id(node),))
        self._written += [f"def {name}(v):", *self._lines, "    return False"]
        self._lines = outer
        return name

    def _value(self, node: ConstraintNode, var: str, depth: int, above: tuple[int, ...]) -> None:
        for limit in node.limits:
            self._write(depth, f"if {self._condition(node, limit, var)}: return True")
        self._variables += 1
        inner, below = f"v{self._variables}", depth + 1
        if node.element is not None:
            self._loop(node.element, f"for {inner} in {var}:", inner, depth, above)
        if node.key is not None:
            self._loop(node.key, f"for {inner} in {var}:", inner, depth, above)
        if node.value is not None:
            self._loop(node.value, f"for {inner} in {var}.values():", inner, depth, above)
        if len(node.members) >= MANY_MEMBERS:
            tests = self._constant(None)
            self._by_member[tests] = {name: self.function(member) for name, member in node.members.items()}
            self._write(depth, f"for {inner} in {var}:")
            self._write(below, f"if {inner} in {tests} and {tests}[{inner}]({var}[{inner}]): return True")
            return
        for name, member in node.members.items():
            if name in node.shape.required_members:
                # If the test reads the value only once, the generated code needs no variable for it. This saves time in long
                # lists.
                if _is_tested_once(member):
                    self._nested(member, f"{var}[{name!r}]", depth, above)
                    continue
                self._write(depth, f"{inner} = {var}[{name!r}]")
                self._nested(member, inner, depth, above)
            else:
                self._write(depth, f"{inner} = {var}.get({name!r})")
                self._write(depth, f"if {inner} is not None:")
                self._nested(member, inner, below, above)

    def _loop(self, node: ConstraintNode, head: str, var: str, depth: int, above: tuple[int, ...]) -> None:
        self._write(depth, head)
        self._nested(node, var, depth + 1, above)

    def _nested(self, node: ConstraintNode, var: str, depth: int, above: tuple[int, ...]) -> None:
        if id(node) in above:  # this shape contains itself, so the code calls the function of the shape
            self._write(depth, f"if {self.function(node)}({var}): return True")
        else:
            self._value(node, var, depth, (*above, id(node)))

    def _condition(self, node: ConstraintNode, limit: Limit, var: str) -> str:
        wrong = []
        if limit.enum is not None:
            wrong.append(f"{var} not in {self._constant(frozenset(limit.enum))}")
        is_sized = node.shape.type_name in SIZED
        size = (f"bytes_of({var})" if limit.in_bytes else f"len({var})") if is_sized else var
        least = None if is_sized and (limit.min or 0) <= 0 else limit.min
        if least is not None and limit.max is not None:
            wrong.append(f"not {least} <= {size} <= {limit.max}")
        elif limit.max is not None:
            wrong.append(f"{size} > {limit.max}")
        elif least is not None:
            wrong.append(f"not {var}" if is_sized and least == 1 else f"{size} < {least}")
        if limit.pattern is not None and (known := matcher(limit.pattern)) is not None:
            match = f"{self._constant(known.any)}({var})"
            if known.ascii is not None:
                match = f"({self._constant(known.ascii)}({var}) if {var}.isascii() else {match})"
            wrong.append(f"{match} is None")
        return " or ".join(wrong) or "False"

    def _constant(self, value: Any) -> str:
        name = f"C{len(self._constants)}"
        self._constants[name] = value
        return name

    def _write(self, depth: int, line: str) -> None:
        self._lines.append("    " * depth + line)


def _is_tested_once(node: ConstraintNode) -> bool:
    if node.shape.type_name in COMPOUND or len(node.limits) > 1:
        return False
    limit = node.limits[0]
    has_range = limit.min is not None or limit.max is not None
    return limit.pattern is None and not (limit.enum is not None and has_range)
