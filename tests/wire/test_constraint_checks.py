"""Every constraint of every served operation is enforced, with the code that its service's table declares."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from corral.aws import catalogue, recognise
from corral.aws.constraints import compile_check, table_of
from corral.aws.constraints.check import compile_test, violations
from corral.aws.constraints.patterns import LINEAR, REPLACEMENTS, matcher, matches
from corral.aws.constraints.tables import DISPLAYED_MAX_CHARACTERS, WITH_TABLE, ConstraintTable, Limit, usual_wording
from corral.aws.constraints.tree import ConstraintNode, constrained, input_node
from corral.aws.models import service_model
from corral.aws.shapes import OperationModel, ServiceModel
from corral.core.errors import ApiError
from corral.operations.services import SERVICES
from each import check_each
from wire.constraint_values import placed, valid, wrong
from wire.generate import Generator
from wire.oracle import SERVED, as_datetimes, model_of, sent_by_botocore


def protocol_of(service: str) -> str:
    return catalogue.SERVICE_BY_NAME[service].protocols[0]


def served(service: str) -> list[str]:
    known = service_model(service, protocol_of(service)).operations
    return [name for name in sorted(SERVICES[service].operations) if name in known]


def operation_of(service: str, name: str) -> OperationModel:
    return service_model(service, protocol_of(service)).operation_model(name)


def tree_of(service: str, name: str) -> tuple[ConstraintTable, ConstraintNode | None]:
    table = table_of(service, protocol_of(service))
    return table, input_node(operation_of(service, name), table.limits)


@pytest.mark.parametrize("service", SERVICES)
def test_every_constraint_is_enforced(service: str) -> None:
    check_each(served(service), partial(is_enforced, service))


def is_enforced(service: str, name: str) -> None:
    table, node = tree_of(service, name)
    check = compile_check(operation_of(service, name), table)
    if node is None:
        assert check is None
        return
    assert check is not None
    check(valid(node.shape, node))
    tried = 0
    for path, inner in constrained(node):
        for limit in inner.limits:
            for term, value in wrong(inner, limit):
                params = placed(node.shape, node, path, value)
                found = violations(node, params)
                assert found, f"{'.'.join(path)}: {term} {limit}"
                codes = {each.limit.code or table.wording(name, [each]).code for each in found}
                with pytest.raises(ApiError) as refused:
                    check(params)
                assert refused.value.code in codes, f"{'.'.join(path)}: {term}"
                assert refused.value.message
                tried += 1
    assert tried


@pytest.mark.parametrize("service", [service for service in SERVICES if protocol_of(service) == "json"])
def test_requests_are_checked(service: str) -> None:
    """A request of botocore that violates the first constraint of each operation is refused."""
    check_each(served(service), partial(is_checked, service))


def is_checked(service: str, name: str) -> None:
    _, node = tree_of(service, name)
    if node is None:
        return
    path, inner = next(iter(constrained(node)))
    _, value = next(iter(wrong(inner, inner.limits[0])))
    params = placed(node.shape, node, path, value)
    shape = model_of(service, "json").operation_model(name).input_shape
    call = recognise(sent_by_botocore(service, "json", name, as_datetimes(shape, params)))
    with pytest.raises(ApiError) as refused:
        call.params()
    assert refused.value.code in {each.limit.code for each in violations(node, params)} | {
        table_of(service, "json").wording(name, violations(node, params)[:1]).code
    }


@pytest.mark.parametrize("service", SERVICES)
def test_the_generated_test_and_the_violations_agree(service: str) -> None:
    check_each(served(service), partial(agree, service))


def agree(service: str, name: str) -> None:
    _, node = tree_of(service, name)
    if node is None:
        return
    is_broken = compile_test(node)
    shape = model_of(service, protocol_of(service)).operation_model(name).input_shape if name != "PostObject" else None
    for seed in range(20 if shape is not None else 0):
        params = Generator(f"constraints {service} {name} {seed}").value(shape)
        assert is_broken(params) == bool(violations(node, params)), f"seed {seed}"


@pytest.mark.parametrize("service", sorted(WITH_TABLE & set(SERVICES)))
def test_every_entry_of_a_table_is_used(service: str) -> None:
    protocol = protocol_of(service)
    read: set[str] = set()

    class Recording(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            read.add(str(key))
            return super().__contains__(key)

    limits = Recording(table_of(service, protocol).limits)
    for name in SERVICES[service].operations:
        if name in service_model(service, protocol).operations:
            input_node(operation_of(service, name), limits)
    assert set(limits) <= read


@pytest.mark.parametrize("service", sorted({*SERVICES, *SERVED}))
def test_every_pattern_of_a_service_compiles(service: str) -> None:
    shapes = service_model(service, protocol_of(service)).shapes
    for pattern in {shape["pattern"] for shape in shapes.values() if "pattern" in shape}:
        known = matcher(pattern)
        assert (known is None) == (REPLACEMENTS.get(pattern, pattern) is None)
        if known is not None:
            known.any("é")  # compiles the pattern for values that are not ASCII


@pytest.mark.parametrize("pattern", sorted(LINEAR))
@given(value=st.text("ab0A._-/:+!", max_size=16))
def test_patterns_without_re2_match_the_same_values(pattern: str, value: str) -> None:
    found = matcher(pattern)
    assert found is not None and found.ascii is not None
    assert matches(found, value) == (re2.fullmatch(pattern, value) is not None)


def test_patterns_are_replaced_only_if_re2_does_not_support_them() -> None:
    options = re2.Options()
    options.log_errors = False
    for pattern in REPLACEMENTS:
        with pytest.raises(re2.error):
            re2.compile(pattern, options)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"[\.\-_/#A-Za-z0-9]+", ["/ecs/a-b", "#"], ["a b", "é", "a\n", ""]),
        (r"^([\p{L}\p{Z}\p{N}_.:/=+\-@]*)$", ["", "a b", "Größe ½ 日本", "a\u00a0b"], ["a\tb", "a!", "é!", "a\n"]),
        (r"[\w+=,.@-]*", ["a_b"], ["é", "a/b"]),
        (r"[\u0009\u000A\u000D\u0020-\u00FF]+", ["a\tÿ"], ["\x00", "Ā", ""]),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\u10000-\u10FFFF]+", ["a", "🐎"], ["\x1f", "\ufffe"]),
        (r"(\u002F)|(\u002F[\u0021-\u007E]+\u002F)", ["/", "/a/"], ["//", "a", "/ /"]),
        (r"[^:].*", ["a:", "é"], [":a", "", "a\nb"]),
        (r"[0-9]{12}", ["123456789012"], ["1234567890123", "12345678901"]),
        (r"[\w-_]*", ["a-_"], ["a b"]),
        (r"^[a-z0-9*](?:[._\-/a-z0-9*]?[a-z0-9*]+)*$", ["a" * 5000], ["a" * 5000 + "!"]),
    ],
)
def test_patterns_match_whole_values_as_java_does(pattern: str, good: list[str], bad: list[str]) -> None:
    known = matcher(pattern)
    assert known is not None
    assert [text for text in good if not matches(known, text)] == []
    assert [text for text in bad if matches(known, text)] == []


SHAPES = {
    "Input": {
        "type": "structure",
        "members": {
            "Name": {"shape": "Name"},
            "Secret": {"shape": "Secret"},
            "Kinds": {"shape": "Kinds"},
            "Tags": {"shape": "Tags"},
            "Items": {"shape": "Items"},
            "Count": {"shape": "Count"},
        },
    },
    "Name": {"type": "string", "min": 2, "max": 5, "pattern": "[a-z]*"},
    "Secret": {"type": "string", "min": 2, "sensitive": True},
    "Kind": {"type": "string", "enum": ["A", "B"]},
    "Kinds": {"type": "list", "member": {"shape": "Kind"}},
    "Tags": {"type": "map", "key": {"shape": "Name"}, "value": {"shape": "Kind"}, "max": 2},
    "Item": {"type": "structure", "members": {"Name": {"shape": "Name"}, "Items": {"shape": "Items"}}},
    "Items": {"type": "list", "member": {"shape": "Item"}},
    "Count": {"type": "integer", "min": 1, "max": 10},
}


def said(params: dict[str, Any], limits: dict[str, Any] | None = None) -> str:
    model = ServiceModel({"metadata": {}, "operations": {"Do": {"input": {"shape": "Input"}}}, "shapes": SHAPES}, "example")
    check = compile_check(model.operation_model("Do"), ConstraintTable(usual_wording("ValidationException"), limits or {}))
    assert check is not None
    with pytest.raises(ApiError) as refused:
        check(params)
    return f"{refused.value.code}: {refused.value.message}"


USUAL = "ValidationException: 1 validation error detected: "


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (
            {"Name": "abcdef"},
            "Value 'abcdef' at 'name' failed to satisfy constraint: Member must have length less than or equal to 5",
        ),
        ({"Count": 0}, "Value '0' at 'count' failed to satisfy constraint: Member must have value greater than or equal to 1"),
        ({"Secret": "x"}, "Value at 'secret' failed to satisfy constraint: Member must have length greater than or equal to 2"),
        (
            {"Kinds": ["A", "C"]},
            "Value '[A, C]' at 'kinds' failed to satisfy constraint: Member must satisfy constraint: "
            "[Member must satisfy enum value set: [A, B]]",
        ),
        (
            {"Tags": {"ok": "C"}},
            "Value '{ok=C}' at 'tags' failed to satisfy constraint: Map value must satisfy constraint: "
            "[Member must satisfy enum value set: [A, B]]",
        ),
        (
            {"Tags": {"x": "A"}},
            "Value '{x=A}' at 'tags' failed to satisfy constraint: Map keys must satisfy constraint: "
            "[Member must have length less than or equal to 5, Member must have length greater than or equal to 2, "
            "Member must satisfy regular expression pattern: [a-z]*]",
        ),
        (
            {"Items": [{"Name": "ok"}, {"Items": [{"Name": "ABC"}]}]},
            "Value 'ABC' at 'items.2.member.items.1.member.name' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [a-z]*",
        ),
    ],
)
def test_the_usual_wording(params: dict[str, Any], text: str) -> None:
    assert said(params) == USUAL + text


def test_several_violations_are_reported_together_and_enums_first() -> None:
    text = said({"Count": 11, "Name": "A", "Kinds": ["C"]})
    assert text.startswith("ValidationException: 4 validation errors detected: Value '[C]' at 'kinds'")
    assert re.findall(r"at '(\w+)'", text) == ["kinds", "count", "name", "name"]


def test_a_long_value_is_truncated() -> None:
    assert len(said({"Name": "a" * 100_000})) < DISPLAYED_MAX_CHARACTERS + 300


def test_a_table_sets_texts_and_corrects_the_model() -> None:
    limits = {
        "Do.Count": Limit(max=3, code="TooMany", text="At most {max}, not {value}."),
        "Do.Kinds[]": Limit(text="Kind {index} is {value}, and none of {enum}."),
        ":Name": (Limit(max=3, in_bytes=True, text="{name} has {length} characters."), Limit(pattern="é+", text="{path}: é only.")),
    }
    assert said({"Count": 4}, limits) == "TooMany: At most 3, not 4."
    assert said({"Kinds": ["A", "C"]}, limits) == "ValidationException: Kind 2 is C, and none of A, B."
    assert said({"Name": "éé"}, limits) == "ValidationException: Name has 2 characters."
    assert said({"Items": [{"Name": "e"}]}, limits) == "ValidationException: items.1.member.name: é only."
