"""Hosts with GPUs of two models: placement constraints choose GPUs of a model, also within such a host."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.cli.runs.host_choice import model_pattern
from corral.model.agent_protocol import Hello
from corral.model.gpu import GpuDevice
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from simulation.clients import CALLER
from simulation.test_claim_queue import Small, definition, ends
from simulation.test_host_clusters import reason, same_index
from simulation.test_service_claims import launch

H200, T4 = "NVIDIA H200", "Tesla T4"


def mixed(*hosts: dict[str, int]) -> Small:
    """Hosts with these numbers of GPUs of each model. The ids of the GPUs begin with their models."""
    small = Small()
    for number, has in enumerate(hosts):
        models = [model for model, count in has.items() for _ in range(count)]
        gpus = [GpuDevice(f"{model}-{number}-{at}", at, model, 1000) for at, model in enumerate(models)]
        hello: Hello = replace(Small.hello(number, 0), gpus=gpus)
        small.transact(lambda tx, hello=hello: host_reports.hello(tx, hello))
    for each in (2, 3, 0, -1):
        document = definition(each, "all" if each < 0 else "")
        if each < 0:
            document["containerDefinitions"][0]["resourceRequirements"][0]["value"] = "ALL"
        small.transact(lambda tx, document=document: HANDLERS["RegisterTaskDefinition"](tx, document, CALLER))
    return small


def run(small: Small, family: str, model: str, **more: Any) -> dict[str, Any]:
    expression = f'attribute:corral.gpu-model =~ "{model_pattern(model)}"'
    params = {"taskDefinition": family, "placementConstraints": [{"type": "memberOf", "expression": expression}], **more}
    answer = small.transact(lambda tx: HANDLERS["RunTask"](tx, params, CALLER))[0]
    return dict((answer["tasks"] or answer["failures"])[0])


def gpus(small: Small, task: dict[str, Any]) -> list[str]:
    found = small.store.tasks.get(task["taskArn"].rpartition("/")[2])
    assert found is not None
    return [gpu_id for each in found.runs for gpu_id in each.gpu_ids]


def test_a_task_gets_gpus_of_its_model_within_a_host() -> None:
    small = mixed({T4: 2, H200: 2})
    assert gpus(small, run(small, "needs-1", "h200")) == [f"{H200}-0-2"]
    assert gpus(small, run(small, "needs-2", "T4")) == [f"{T4}-0-0", f"{T4}-0-1"]
    waiting = run(small, "needs-1", "T4")
    assert small.state(waiting) == "PROVISIONING", "an H200 is free"
    assert "0 of 2 such GPUs free on it" in reason(small, waiting)
    other = run(small, "needs-1", "H200")
    assert gpus(small, other) == [f"{H200}-0-3"] and same_index(small)
    assert small.state(run(small, "needs-1", "V100")) == "PROVISIONING"


def test_a_task_that_can_never_run_is_refused() -> None:
    small = mixed({T4: 4, H200: 2})
    tags = [{"key": "corral:refuse-unfit", "value": "true"}]
    refused = run(small, "needs-3", "H200", tags=tags)
    assert refused["reason"] == "RESOURCE:GPU" and "2 of 2 such GPUs" in refused["detail"]
    assert small.state(run(small, "needs-3", "T4", tags=tags)) == "PENDING"
    failed = run(small, "needs-3", "H200", launchType="EC2")
    assert failed["reason"] == "RESOURCE:GPU"


def test_all_gpus_of_a_model_and_the_host_that_has_them() -> None:
    small = mixed({T4: 2, H200: 2}, {H200: 4}, {T4: 1})
    everything = run(small, "all", "T4")
    assert set(gpus(small, everything)) <= {f"{T4}-0-0", f"{T4}-0-1", f"{T4}-2-0"}
    assert gpus(small, run(small, "needs-3", "H200")) == [f"{H200}-1-0", f"{H200}-1-1", f"{H200}-1-2"]
    assert same_index(small)


def test_a_claim_for_a_model_reserves_a_host_that_can_hold_it() -> None:
    """The host with more free GPUs of another model is not reserved, and younger tasks do not overtake the claim."""
    small = mixed({T4: 4, H200: 1}, {H200: 2})
    holder = run(small, "needs-1", "H200", placementStrategy=[])
    second = run(small, "needs-2", "H200")
    assert gpus(small, holder) == [f"{H200}-0-4"] or small.state(second) == "PROVISIONING"
    waiting = run(small, "needs-2", "H200")
    assert small.state(waiting) == "PROVISIONING"
    assert gpus(small, run(small, "needs-3", "T4")) == [f"{T4}-0-{at}" for at in range(3)], "the other host is reserved"
    if small.state(second) == "PENDING":
        small.transact(ends(small.transact(lambda tx: HANDLERS["DescribeTasks"](
            tx, {"tasks": [second["taskArn"]]}, CALLER))[0]["tasks"][0]))  # fmt: skip
        assert small.state(waiting) == "PENDING"


def test_gpus_that_instances_own_count_by_their_model() -> None:
    small = mixed({T4: 1, H200: 1})
    taken = small.transact(launch(1))[0]
    assert taken.host_id == "h0"
    [owned] = small.store.instances.gpus(taken.id)
    other = "T4" if owned.model == H200 else "H200"
    assert gpus(small, run(small, "needs-1", other, cluster="default")) and same_index(small)
    waiting = run(small, "needs-1", "T4" if other == "H200" else "H200")
    assert small.state(waiting) in ("PROVISIONING", "PENDING")
