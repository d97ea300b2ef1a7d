"""Random acyclic templates of stored-only and real types, with faults: a resource whose step fails."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

GPU_TYPE = "g5.xlarge"  # one GPU
MOST = 8


class Node(Struct, frozen=True):
    """One resource. `size` changes it in place, and `form` replaces it."""

    kind: str
    size: int
    form: int
    needs: tuple[str, ...] = ()  # logical ids for DependsOn
    refers: str | None = None  # the logical id in a Ref
    faulty: bool = False


def _queue(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    fifo = {"FifoQueue": True} if node.form else {}
    return {"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": 5000 if node.faulty else node.size, "Tags": tags, **fifo}}


def _load_balancer(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    """A type of a service that Corral does not have, so it is stored only."""
    # A property that the schema does not know makes the step fail before it begins.
    fault = {"NoSuchProperty": 1} if node.faulty else {}
    attributes = [{"Key": "idle_timeout.timeout_seconds", "Value": f"{node.size}"}]
    scheme = {"Scheme": "internal"} if node.form else {}
    properties = {"LoadBalancerAttributes": attributes, "Tags": tags, **scheme, **fault}
    return {"Type": "AWS::ElasticLoadBalancingV2::LoadBalancer", "Properties": properties}


def _vpc(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    cidr = "10.0.0.0/4" if node.faulty else f"10.{node.form}.0.0/16"
    return {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": cidr, "EnableDnsHostnames": bool(node.size), "Tags": tags}}


def _log_group(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    days = 8 if node.faulty else (1, 3, 5, 7)[node.size]
    return {"Type": "AWS::Logs::LogGroup", "Properties": {"RetentionInDays": days, "Tags": tags}}


def _parameter(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    value = "x" if node.faulty else str(node.size)
    properties = {"Type": "String", "Value": value, "AllowedPattern": "[0-9]+", "Tags": {tag["Key"]: tag["Value"] for tag in tags}}
    return {"Type": "AWS::SSM::Parameter", "Properties": properties}


def _group(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    size = min(node.size, 2)
    tagged = [{**tag, "PropagateAtLaunch": False} for tag in tags]
    launch = {"LaunchConfigurationName": "none" if node.faulty else "lc"}
    sizes = {"MinSize": str(size), "MaxSize": "2", "DesiredCapacity": str(size)}
    zones = {"AvailabilityZones": ["us-east-1a"]}
    found: dict[str, Any] = {
        "Type": "AWS::AutoScaling::AutoScalingGroup",
        "Properties": {**launch, **sizes, **zones, "Tags": tagged},
    }
    if node.form:
        found["CreationPolicy"] = {"ResourceSignal": {"Count": size, "Timeout": "PT1M"}}
    return found


def _definition(node: Node, tags: list[dict[str, Any]]) -> dict[str, Any]:
    """A revision of a family: a replacement is the next revision. All definitions of the stack are in the same family."""
    container = {"Name": "a", "Image": "corral/host", "Memory": -1 if node.faulty else 64, "Command": [f"{node.form}"]}
    sizes = [*tags, {"Key": "size", "Value": f"{node.size}"}]
    properties = {"Family": "family", "ContainerDefinitions": [container], "Tags": sizes}
    return {"Type": "AWS::ECS::TaskDefinition", "Properties": properties}


KINDS = {
    "queue": _queue,
    "balancer": _load_balancer,
    "vpc": _vpc,
    "logs": _log_group,
    "parameter": _parameter,
    "group": _group,
    "definition": _definition,
}


def template_of(nodes: dict[str, Node]) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    for logical_id, node in nodes.items():
        tags = [{"Key": "of", "Value": {"Ref": node.refers}}] if node.refers in nodes else []
        resources[logical_id] = KINDS[node.kind](node, tags)
        needs = [each for each in node.needs if each in nodes]
        if needs:
            resources[logical_id]["DependsOn"] = needs
    outputs = {f"Out{key}": {"Value": {"Ref": key}, "Export": {"Name": f"export-{key}"}} for key in resources}
    return {"Resources": resources, "Outputs": outputs}


@st.composite
def graphs(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS), faults: bool = True) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for at in range(draw(st.integers(1, MOST))):
        nodes[f"N{at}"] = draw(_nodes(kinds, tuple(nodes), faults))
    return nodes


@st.composite
def _nodes(draw: st.DrawFn, kinds: tuple[str, ...], earlier: tuple[str, ...], faults: bool) -> Node:
    needs = tuple(sorted(draw(st.sets(st.sampled_from(earlier), max_size=2)))) if earlier else ()
    refers = draw(st.none() | st.sampled_from(earlier)) if earlier else None
    faulty = faults and draw(st.sampled_from((False,) * 9 + (True,)))
    return Node(draw(st.sampled_from(kinds)), draw(st.integers(0, 3)), draw(st.integers(0, 1)), needs, refers, faulty)


@st.composite
def changed(draw: st.DrawFn, nodes: dict[str, Node], faults: bool = True) -> dict[str, Node]:
    """Another version of a template: some resources stay, and others are changed, removed or added."""
    found: dict[str, Node] = {}
    for logical_id, node in nodes.items():
        action = draw(st.sampled_from(("keep", "keep", "size", "form", "remove", "edges", "fault" if faults else "keep")))
        earlier = tuple(found)
        node = Node(node.kind, node.size, node.form, node.needs, node.refers)
        if action == "size":
            node = Node(node.kind, (node.size + 1) % 4, node.form, node.needs, node.refers)
        elif action == "form":
            node = Node(node.kind, node.size, 1 - node.form, node.needs, node.refers)
        elif action == "edges" and earlier:
            node = Node(
                node.kind, node.size, node.form, (draw(st.sampled_from(earlier)),), draw(st.none() | st.sampled_from(earlier))
            )
        elif action == "fault":
            node = Node(node.kind, node.size, node.form, node.needs, node.refers, True)
        if action != "remove":
            found[logical_id] = node
    for at in range(draw(st.integers(0, 3))):
        found[f"M{at}"] = draw(_nodes(tuple({node.kind for node in nodes.values()}), tuple(found), faults))
    return found or {"M0": Node("balancer", 0, 0)}
