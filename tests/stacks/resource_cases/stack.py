"""A stack without the engine: the resources of one test, created in order, each in the store of its lane."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import LOGS, METRICS, STATE
from corral.services.ecs import host_reports
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from corral.template_types.lookup import read_attributes, replacing_properties, resource_type, template_type
from corral.template_types.resource_types import ResourceStep
from corral.template_types.schemas import check_properties
from stacks.resource_cases import CALLER
from store.rows import hello

RECONCILERS = {"state": STATE, "logs": LOGS, "metrics": METRICS}


class Stack:
    def __init__(self, caller: Caller = CALLER) -> None:
        self.caller = caller
        self.stores: dict[str, Any] = {"state": Store(None), "logs": LogStore(None), "metrics": MetricStore(None)}
        self.clock, self.ids = VirtualClock(), SeededIds(Random(1))
        self.resources: dict[str, tuple[str, str, dict[str, Any]]] = {}  # key → type, physical id, properties
        self.run("state", lambda tx: host_reports.hello(tx, hello("h", 8)))

    def tx(self, lane: str) -> Tx[Any]:
        return Tx(self.stores[lane], self.clock.now_s(), self.ids, Settings())

    def run(self, lane: str, function: Callable[[Tx[Any]], Any]) -> Any:
        """Call a function with a transaction, and then the reconcilers that it marks."""
        tx = self.tx(lane)
        result = function(tx)
        while tx._marks:
            kind, _, name = tx._marks.popitem()[0].partition(":")
            RECONCILERS[lane][kind](tx, name)
        return result

    def create(self, key: str, type_name: str, properties: dict[str, Any]) -> str:
        type_ = template_type(type_name)
        assert type_ is not None
        values = self.checked(type_name, key, properties)
        identity: str = self.run(type_.lane, lambda tx: type_.create(tx, self.caller, values))
        self.resources[key] = type_name, identity, values
        return identity

    def update(self, key: str, properties: dict[str, Any]) -> None:
        type_name, identity, old = self.resources[key]
        type_, new = template_type(type_name), self.checked(type_name, key, properties)
        assert type_ is not None and replacing_properties(type_name, old, new) == []
        self.run(type_.lane, lambda tx: type_.update(tx, self.caller, identity, old, new))
        step = ResourceStep("arn:stack", "stack", key, identity, "UPDATE", new, old)
        if (settled := type_.settled) is not None:  # it may change the physical id
            self.run(type_.lane, lambda tx: settled(tx, self.caller, step))
        self.resources[key] = type_name, step.physical_id, new

    def checked(self, type_name: str, key: str, properties: dict[str, Any]) -> dict[str, Any]:
        """The properties as a type gets them: references are resolved, and text is converted to the types in the schema."""
        values = self.resolved(properties)
        own = {name: value for name, value in values.items() if name[0] == "_"}
        return check_properties(type_name, key, {name: value for name, value in values.items() if name not in own}) | own

    def attributes(self, key: str) -> dict[str, Any]:
        type_name, identity, properties = self.resources[key]
        type_ = resource_type(type_name)
        return read_attributes(self.tx(type_.lane), self.caller, type_, identity, properties)

    def delete(self, key: str) -> None:
        type_name, identity, properties = self.resources.pop(key)
        type_ = template_type(type_name)
        assert type_ is not None
        self.run(type_.lane, lambda tx: type_.delete(tx, self.caller, identity, properties))
        gone, step = type_.gone, ResourceStep("arn:stack", "stack", key, identity, "DELETE", properties)
        assert gone is None or self.run(type_.lane, lambda tx: gone(tx, self.caller, step)) is None

    def resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {"Ref"}:
                return self.resources[value["Ref"]][1]
            if value.keys() == {"GetAtt"}:
                return self.attributes(value["GetAtt"][0])[value["GetAtt"][1]]
            return {name: self.resolved(inner) for name, inner in value.items()}
        return [self.resolved(inner) for inner in value] if isinstance(value, list) else value

    def call(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        service, _, name = operation.partition(":")
        return SERVICES[service].operations[name](self.tx(SERVICES[service].lane), params, CALLER)
