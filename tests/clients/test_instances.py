"""EC2 instances on eight simulated GPUs, by boto3 and the aws command: launches, states, clusters, templates, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import Corral, container, wait_stopped

JOIN = "#!/bin/bash\necho ECS_CLUSTER={} >> /etc/ecs/ecs.config\n"
IMAGE = "ami-0123456789abcdef0"


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "sim:8").start()
    yield running
    running.clear()


@pytest.fixture
def ec2(corral: Corral) -> Iterator[Any]:
    """A client; all instances are terminated after the test."""
    client = corral.client("ec2")
    yield client
    terminate_all(client)


@pytest.fixture
def ecs(corral: Corral) -> Any:
    return corral.client("ecs")


def instances(ec2: Any, **params: Any) -> list[dict[str, Any]]:
    return [each for found in ec2.describe_instances(**params)["Reservations"] for each in found["Instances"]]


def terminate_all(ec2: Any) -> None:
    left = [each for each in instances(ec2) if each["State"]["Name"] != "terminated"]
    for each in left:
        ec2.modify_instance_attribute(InstanceId=each["InstanceId"], DisableApiTermination={"Value": False})
    if left:
        ids = [each["InstanceId"] for each in left]
        ec2.terminate_instances(InstanceIds=ids)
        eventually(lambda: all(each["State"]["Name"] == "terminated" for each in instances(ec2, InstanceIds=ids)), "all terminated")


def run(ec2: Any, type_: str, count: int = 1, **more: Any) -> list[str]:
    reply = ec2.run_instances(ImageId=IMAGE, InstanceType=type_, MinCount=count, MaxCount=count, **more)
    return [each["InstanceId"] for each in reply["Instances"]]


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def test_two_instances_join_a_cluster_and_run_tasks(ec2: Any, ecs: Any) -> None:
    ecs.create_cluster(clusterName="train")
    attributes = 'echo \'ECS_INSTANCE_ATTRIBUTES={"rack":"a"}\' >> /etc/ecs/ecs.config\n'
    ids = run(ec2, "p3.8xlarge", 2, UserData=JOIN.format("train") + attributes)
    ec2.get_waiter("instance_running").wait(InstanceIds=ids)
    ec2.get_waiter("instance_status_ok").wait(InstanceIds=ids)
    arns = ecs.list_container_instances(cluster="train")["containerInstanceArns"]
    shown = ecs.describe_container_instances(cluster="train", containerInstances=arns)["containerInstances"]
    assert sorted(each["ec2InstanceId"] for each in shown) == sorted(ids)
    for each in shown:
        values = {attribute["name"]: attribute.get("value") for attribute in each["attributes"]}
        assert values["rack"] == "a" and values["ecs.instance-type"] == "p3.8xlarge"
        resources = {resource["name"]: resource for resource in each["registeredResources"]}
        assert len(resources["GPU"]["stringSetValue"]) == 4 and resources["CPU"]["integerValue"] == 32 * 1024
    ecs.register_task_definition(family="hold", containerDefinitions=[container(["sleep", "600"], gpus=4)])
    tasks = ecs.run_task(cluster="train", taskDefinition="hold", count=2, launchType="EC2")
    assert not tasks["failures"]
    used = [gpu for task in tasks["tasks"] for gpu in task["containers"][0]["gpuIds"]]
    assert len(set(used)) == 8
    ec2.terminate_instances(InstanceIds=ids)
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids)
    arns = [task["taskArn"] for task in tasks["tasks"]]
    stopped = [ecs.describe_tasks(cluster="train", tasks=[arn])["tasks"][0] for arn in arns]
    assert {(task["lastStatus"], task["stopCode"]) for task in stopped} == {("STOPPED", "TerminationNotice")}
    assert ecs.list_container_instances(cluster="train")["containerInstanceArns"] == []
    ecs.delete_cluster(cluster="train")


def test_not_enough_capacity_says_what_is_needed_and_how_to_map_the_type(ec2: Any) -> None:
    code, text = refused(lambda: run(ec2, "p2.16xlarge"))
    assert code == "InsufficientInstanceCapacity"
    assert "needs 16 GPUs, and this machine has 8 GPUs" in text and "[instance-types] p2.16xlarge = {gpus = 8}" in text
    run(ec2, "p3.8xlarge")
    code, text = refused(lambda: run(ec2, "p3.8xlarge", 2))
    assert code == "InsufficientInstanceCapacity" and "there is room for 1 of them" in text
    code, text = refused(lambda: run(ec2, "p3.16xlarge"))
    assert code == "InsufficientInstanceCapacity" and "needs 8 GPUs; 4 of 8 GPUs free" in text
    assert len([each for each in instances(ec2) if each["State"]["Name"] == "running"]) == 1, "a refused launch leaves nothing"
    reply = ec2.run_instances(ImageId=IMAGE, InstanceType="p3.2xlarge", MinCount=1, MaxCount=20)
    assert len(reply["Instances"]) == 4, "as many as fit"
    assert refused(lambda: run(ec2, "p99.large"))[0] == "InvalidParameterValue"
    assert refused(lambda: ec2.run_instances(ImageId=IMAGE, MinCount=2, MaxCount=1))[0] == "InvalidParameterValue"
    assert refused(lambda: ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=21))[0] == "InstanceLimitExceeded"
    assert refused(lambda: ec2.run_instances(MinCount=1, MaxCount=1))[0] == "MissingParameter"


def test_a_client_token_and_a_dry_run_launch_once(ec2: Any) -> None:
    asked = {"ImageId": IMAGE, "InstanceType": "p3.2xlarge", "MinCount": 1, "MaxCount": 1, "ClientToken": "once"}
    assert refused(lambda: ec2.run_instances(**asked, DryRun=True))[0] == "DryRunOperation"
    first, again = ec2.run_instances(**asked), ec2.run_instances(**asked)
    assert first["Instances"][0]["InstanceId"] == again["Instances"][0]["InstanceId"]
    assert first["ReservationId"] == again["ReservationId"]
    assert refused(lambda: ec2.run_instances(**asked | {"MaxCount": 2}))[0] == "IdempotentParameterMismatch"
    assert len([each for each in instances(ec2) if each["State"]["Name"] == "running"]) == 1


def test_stop_and_start(ec2: Any, ecs: Any) -> None:
    ecs.create_cluster(clusterName="pause")
    (paused,) = run(ec2, "p3.16xlarge", UserData=JOIN.format("pause"))
    ecs.register_task_definition(family="pause", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    task = ecs.run_task(cluster="pause", taskDefinition="pause", launchType="EC2")["tasks"][0]["taskArn"]
    change = ec2.stop_instances(InstanceIds=[paused])["StoppingInstances"][0]
    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "stopping")
    ec2.get_waiter("instance_stopped").wait(InstanceIds=[paused], WaiterConfig={"Delay": 1})
    assert ecs.describe_tasks(cluster="pause", tasks=[task])["tasks"][0]["lastStatus"] == "STOPPED"
    assert ecs.list_container_instances(cluster="pause")["containerInstanceArns"] == []
    (other,) = run(ec2, "p3.8xlarge")  # its GPUs are free
    code, text = refused(lambda: ec2.start_instances(InstanceIds=[paused]))
    assert code == "InsufficientInstanceCapacity" and "needs 8 GPUs" in text
    ec2.modify_instance_attribute(InstanceId=paused, InstanceType={"Value": "p3.8xlarge"})
    code, _ = refused(lambda: ec2.modify_instance_attribute(InstanceId=other, InstanceType={"Value": "p3.2xlarge"}))
    assert code == "IncorrectInstanceState"
    started = ec2.start_instances(InstanceIds=[paused])["StartingInstances"][0]
    assert started["PreviousState"]["Name"] == "stopped"
    ec2.get_waiter("instance_running").wait(InstanceIds=[paused])
    assert len(ecs.list_container_instances(cluster="pause")["containerInstanceArns"]) == 1
    ec2.reboot_instances(InstanceIds=[paused])
    ec2.modify_instance_attribute(InstanceId=paused, DisableApiTermination={"Value": True})
    assert refused(lambda: ec2.terminate_instances(InstanceIds=[paused]))[0] == "OperationNotPermitted"
    ec2.modify_instance_attribute(InstanceId=paused, Attribute="disableApiTermination", Value="false")
    ec2.terminate_instances(InstanceIds=[paused])
    eventually(lambda: instances(ec2, InstanceIds=[paused])[0]["State"]["Name"] == "terminated", "terminated")
    for call in (ec2.stop_instances, ec2.start_instances, ec2.reboot_instances):
        assert refused(lambda call=call: call(InstanceIds=[paused]))[0] == "IncorrectInstanceState"


def test_an_instance_joins_a_cluster_that_is_created_later(ec2: Any, ecs: Any) -> None:
    (early,) = run(ec2, "p3.2xlarge", UserData=JOIN.format("later"))
    assert "later does not exist" in ec2.get_console_output(InstanceId=early)["Output"]
    ecs.create_cluster(clusterName="later")
    (arn,) = ecs.list_container_instances(cluster="later")["containerInstanceArns"]
    assert "joined the ECS cluster later" in ec2.get_console_output(InstanceId=early)["Output"]
    with pytest.raises(ecs.exceptions.ClusterContainsContainerInstancesException):
        ecs.delete_cluster(cluster="later")
    ecs.register_task_definition(family="later", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    task = ecs.run_task(cluster="later", taskDefinition="later", launchType="EC2")["tasks"][0]["taskArn"]
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="running tasks"):
        ecs.deregister_container_instance(cluster="later", containerInstance=arn)
    gone = ecs.deregister_container_instance(cluster="later", containerInstance=arn, force=True)["containerInstance"]
    assert gone["status"] == "INACTIVE"
    eventually(lambda: not ecs.list_container_instances(cluster="later")["containerInstanceArns"], "it left the cluster")
    assert ecs.describe_tasks(cluster="later", tasks=[task])["tasks"][0]["lastStatus"] == "STOPPED"
    assert instances(ec2, InstanceIds=[early])[0]["State"]["Name"] == "running"


def test_describe_instances_filters_and_pages(ec2: Any, aws: Callable[..., Any]) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "blue"}]}, {"ResourceType": "volume", "Tags": []}]
    blue = run(ec2, "m5.large", 6, TagSpecifications=tags)
    (green,) = run(ec2, "p3.2xlarge")
    aws("ec2", "create-tags", "--resources", green, "--tags", "Key=team,Value=green")
    shown = instances(ec2, InstanceIds=[green])[0]
    for name, value, expected in (
        ("tag:team", "blue", blue),
        ("tag:team", "gr*", [green]),
        ("tag-key", "team", [*blue, green]),
        ("instance-type", "m5.*", blue),
        ("private-ip-address", shown["PrivateIpAddress"], [green]),
        ("subnet-id", shown["SubnetId"], [*blue, green]),
        ("vpc-id", "vpc-0", []),
        ("launch-time", shown["LaunchTime"].strftime("%Y-%m-%dT%H:*"), [*blue, green]),
        ("image-id", IMAGE, [*blue, green]),
        ("availability-zone", "us-east-1a", [*blue, green]),
        ("instance.group-name", "default", [*blue, green]),
        ("owner-id", "123456789012", [*blue, green]),
    ):
        filters = [{"Name": name, "Values": [value]}, {"Name": "instance-state-name", "Values": ["running"]}]
        found = [each["InstanceId"] for each in instances(ec2, Filters=filters)]
        assert sorted(found) == sorted(expected), (name, value)
    assert refused(lambda: ec2.describe_instances(Filters=[{"Name": "colour", "Values": ["x"]}]))[0] == "InvalidParameterValue"
    pages = list(ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
    paged = [each["InstanceId"] for page in pages for found in page["Reservations"] for each in found["Instances"]]
    assert len(pages) > 1 and len(paged) == len(set(paged)) and set(paged) >= {*blue, green}
    assert len({each["PrivateIpAddress"] for each in instances(ec2, InstanceIds=[*blue, green])}) == 7
    ec2.delete_tags(Resources=[green], Tags=[{"Key": "team"}])
    assert instances(ec2, InstanceIds=[green])[0]["Tags"] == []
    listed = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": blue[:1]}])["Tags"]
    assert [(tag["Key"], tag["Value"], tag["ResourceType"]) for tag in listed] == [("team", "blue", "instance")]
    assert refused(lambda: ec2.describe_instances(InstanceIds=["i-01234567890abcdef"]))[0] == "InvalidInstanceID.NotFound"
    assert refused(lambda: ec2.describe_instances(InstanceIds=["x"]))[0] == "InvalidInstanceID.Malformed"
    ec2.get_waiter("instance_exists").wait(InstanceIds=[green])
    statuses = ec2.describe_instance_status(IncludeAllInstances=True)["InstanceStatuses"]
    assert {each["InstanceStatus"]["Status"] for each in statuses if each["InstanceId"] in blue} == {"ok"}


def test_resources_of_a_launch_must_exist(ec2: Any, corral: Corral) -> None:
    asked = {"ImageId": IMAGE, "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1}
    for more, code in (
        ({"KeyName": "nobodys"}, "InvalidKeyPair.NotFound"),
        ({"SubnetId": "subnet-01234567890abcdef"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-01234567890abcdef"]}, "InvalidGroup.NotFound"),
        ({"SecurityGroups": ["none"]}, "InvalidGroup.NotFound"),
        ({"IamInstanceProfile": {"Name": "none"}}, "InvalidParameterValue"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"PrivateIpAddress": "10.9.9.9"}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "vpc", "Tags": []}]}, "InvalidParameterValue"),
        ({"LaunchTemplate": {"LaunchTemplateName": "none"}}, "InvalidLaunchTemplateName.NotFoundException"),
    ):
        assert refused(lambda more=more: ec2.run_instances(**asked, **more))[0] == code, more
    iam = corral.client("iam")
    profile = iam.create_instance_profile(InstanceProfileName="node")["InstanceProfile"]["Arn"]
    ec2.create_key_pair(KeyName="mine", KeyType="ed25519")
    subnet = next(each for each in ec2.describe_subnets()["Subnets"] if each["AvailabilityZone"] == "us-east-1b")
    (launched,) = ec2.run_instances(
        **asked, KeyName="mine", IamInstanceProfile={"Name": "node"}, Placement={"AvailabilityZone": "us-east-1b"}
    )["Instances"]
    assert (launched["KeyName"], launched["IamInstanceProfile"]["Arn"]) == ("mine", profile)
    (shown,) = ec2.describe_subnets(SubnetIds=[subnet["SubnetId"]])["Subnets"]
    assert shown["AvailableIpAddressCount"] == subnet["AvailableIpAddressCount"] - 1
    block = ip_network(subnet["CidrBlock"])
    for address, code, text in (
        (block[3], "InvalidParameterValue", "in the reserved address range"),
        (block[-1], "InvalidParameterValue", "in the reserved address range"),
        (block.broadcast_address + 1, "InvalidParameterValue", "does not fall within the address range"),
        ("10.0.0", "InvalidParameterValue", "not a valid IPv4 address"),
        (launched["PrivateIpAddress"], "InvalidIPAddress.InUse", "is in use."),
    ):
        wanted = {**asked, "SubnetId": subnet["SubnetId"], "PrivateIpAddress": str(address)}
        found, message = refused(lambda wanted=wanted: ec2.run_instances(**wanted))
        assert found == code and text in message, address
    assert launched["SubnetId"] == subnet["SubnetId"] and launched["Placement"]["AvailabilityZone"] == "us-east-1b"
    group = launched["SecurityGroups"][0]["GroupId"]
    assert refused(lambda: ec2.delete_subnet(SubnetId=subnet["SubnetId"]))[0] == "DependencyViolation"
    own = ec2.create_security_group(GroupName="own", Description="x")["GroupId"]
    ec2.modify_instance_attribute(InstanceId=launched["InstanceId"], Groups=[own])
    assert refused(lambda: ec2.delete_security_group(GroupId=own))[0] == "DependencyViolation"
    assert group != own
    shown = ec2.describe_instance_attribute(InstanceId=launched["InstanceId"], Attribute="groupSet")["Groups"]
    assert [each["GroupId"] for each in shown] == [own]


def test_console_output_says_which_lines_were_understood(ec2: Any) -> None:
    script = JOIN.format("default") + "yum install -y nvtop\necho ECS_ENABLE_GPU_SUPPORT=true >> /etc/ecs/ecs.config\n"
    (launched,) = run(ec2, "p3.2xlarge", UserData=script)
    lines = ec2.get_console_output(InstanceId=launched)["Output"].splitlines()
    assert "understood: ECS_CLUSTER=default" in lines and "skipped:    yum install -y nvtop" in lines
    assert any(IMAGE in line and "not on record" in line for line in lines)
    given = ec2.describe_instance_attribute(InstanceId=launched, Attribute="userData")["UserData"]["Value"]
    import base64

    assert base64.b64decode(given).decode() == script


def test_new_user_data_keeps_the_default_cluster_of_an_ecs_image(ec2: Any, ecs: Any) -> None:
    ecs.create_cluster(clusterName="default")
    image = "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
    reply = ec2.run_instances(ImageId=image, InstanceType="m5.large", MinCount=1, MaxCount=1, UserData=JOIN.format("other"))
    launched = reply["Instances"][0]["InstanceId"]
    ec2.stop_instances(InstanceIds=[launched])
    ec2.get_waiter("instance_stopped").wait(InstanceIds=[launched])
    ec2.modify_instance_attribute(InstanceId=launched, UserData={"Value": b"#!/bin/bash\n"})
    ec2.start_instances(InstanceIds=[launched])
    assert "It joined the ECS cluster default." in ec2.get_console_output(InstanceId=launched)["Output"]


def test_launch_templates_have_versions(ec2: Any) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}]
    data = {"ImageId": IMAGE, "InstanceType": "p3.2xlarge", "TagSpecifications": tags}
    made = ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data, VersionDescription="first")[
        "LaunchTemplate"
    ]
    name = {"LaunchTemplateName": "gpu"}
    assert refused(lambda: ec2.create_launch_template(LaunchTemplateName="gpu", LaunchTemplateData=data))[0] == (
        "InvalidLaunchTemplateName.AlreadyExistsException"
    )
    second = ec2.create_launch_template_version(**name, SourceVersion="1", LaunchTemplateData={"InstanceType": "p3.8xlarge"})
    assert second["LaunchTemplateVersion"]["LaunchTemplateData"]["ImageId"] == IMAGE
    for version, type_ in (("$Default", "p3.2xlarge"), ("$Latest", "p3.8xlarge"), ("1", "p3.2xlarge")):
        launched = ec2.run_instances(LaunchTemplate={**name, "Version": version}, MinCount=1, MaxCount=1)["Instances"][0]
        assert launched["InstanceType"] == type_
        shown = {tag["Key"]: tag["Value"] for tag in launched["Tags"]}
        assert shown["from"] == "template" and shown["aws:ec2launchtemplate:id"] == made["LaunchTemplateId"]
        ec2.terminate_instances(InstanceIds=[launched["InstanceId"]])
    launched = ec2.run_instances(LaunchTemplate=name, InstanceType="m5.large", MinCount=1, MaxCount=1)["Instances"][0]
    assert launched["InstanceType"] == "m5.large", "a member of the request replaces the template's"
    changed = ec2.modify_launch_template(**name, DefaultVersion="2")["LaunchTemplate"]
    assert (changed["DefaultVersionNumber"], changed["LatestVersionNumber"]) == (2, 2)
    for asked, numbers in (
        ({}, [1, 2]),
        ({"Versions": ["$Latest"]}, [2]),
        ({"Versions": ["$Default", "1"]}, [1, 2]),
        ({"MinVersion": "2"}, [2]),
        ({"MaxVersion": "1"}, [1]),
    ):
        found = ec2.describe_launch_template_versions(**name, **asked)["LaunchTemplateVersions"]
        assert sorted(each["VersionNumber"] for each in found) == numbers, asked
    latest = ec2.describe_launch_template_versions(Versions=["$Latest"])["LaunchTemplateVersions"]
    assert [each["LaunchTemplateName"] for each in latest] == ["gpu"]
    deleted = ec2.delete_launch_template_versions(**name, Versions=["1", "2", "7"])
    assert [each["VersionNumber"] for each in deleted["SuccessfullyDeletedLaunchTemplateVersions"]] == [1]
    assert [each["VersionNumber"] for each in deleted["UnsuccessfullyDeletedLaunchTemplateVersions"]] == [2, 7]
    assert refused(lambda: ec2.run_instances(LaunchTemplate={**name, "Version": "1"}, MinCount=1, MaxCount=1))[0] == (
        "InvalidLaunchTemplateId.VersionNotFound"
    )
    ec2.delete_launch_template(**name)
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert refused(lambda: ec2.describe_launch_templates(LaunchTemplateIds=[made["LaunchTemplateId"]]))[0] == (
        "InvalidLaunchTemplateId.NotFound"
    )


def test_images_are_records(ec2: Any, corral: Corral) -> None:
    (source,) = run(ec2, "m5.large")
    made = ec2.create_image(InstanceId=source, Name="worker-1", Description="with CUDA")["ImageId"]
    registered = ec2.register_image(Name="worker-2", Architecture="arm64", RootDeviceName="/dev/xvda")["ImageId"]
    ec2.get_waiter("image_available").wait(ImageIds=[made, registered])
    own = ec2.describe_images(Owners=["self"], Filters=[{"Name": "name", "Values": ["worker-*"]}])["Images"]
    assert sorted(each["ImageId"] for each in own) == sorted([made, registered])
    assert refused(lambda: ec2.register_image(Name="worker-1"))[0] == "InvalidAMIName.Duplicate"
    parameter = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
    public = corral.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    assert ec2.describe_images(ImageIds=[public])["Images"][0]["ImageOwnerAlias"] == "amazon"
    resolved = ec2.run_instances(ImageId=f"resolve:ssm:{parameter}", InstanceType="m5.large", MinCount=1, MaxCount=1)
    assert resolved["Instances"][0]["ImageId"] == public
    ec2.deregister_image(ImageId=made)
    assert refused(lambda: ec2.describe_images(ImageIds=[made]))[0] == "InvalidAMIID.NotFound"


def test_instance_types(ec2: Any, aws: Callable[..., Any]) -> None:
    (p3,) = ec2.describe_instance_types(InstanceTypes=["p3.8xlarge"])["InstanceTypes"]
    assert p3["GpuInfo"]["Gpus"][0] | {"Name": "V100"} == p3["GpuInfo"]["Gpus"][0] and p3["GpuInfo"]["Gpus"][0]["Count"] == 4
    assert (p3["VCpuInfo"]["DefaultVCpus"], p3["MemoryInfo"]["SizeInMiB"]) == (32, 244 * 1024)
    pages = ec2.get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 100})
    names = [each["InstanceType"] for page in pages for each in page["InstanceTypes"]]
    assert len(names) == len(set(names)) > 1_300 and {"p2.xlarge", "g2.2xlarge", "p5.48xlarge"} <= set(names)
    arm = ec2.describe_instance_types(
        Filters=[
            {"Name": "processor-info.supported-architecture", "Values": ["arm64"]},
            {"Name": "instance-type", "Values": ["m6g.*"]},
        ]
    )["InstanceTypes"]
    assert len(arm) > 5 and all(each["InstanceType"].startswith("m6g.") for each in arm)
    assert refused(lambda: ec2.describe_instance_types(InstanceTypes=["x9.large"]))[0] == "InvalidInstanceType"
    offered = aws(
        "ec2", "describe-instance-type-offerings", "--location-type", "availability-zone", "--filters",
        "Name=instance-type,Values=p3.8xlarge",
    )["InstanceTypeOfferings"]  # fmt: skip
    assert sorted(each["Location"] for each in offered) == ["us-east-1a", "us-east-1b", "us-east-1c"]


def test_this_machine_is_described_by_its_id_only(ec2: Any, ecs: Any) -> None:
    (arn,) = ecs.list_container_instances()["containerInstanceArns"]
    own = ec2_id_of(ecs, arn)
    (shown,) = instances(ec2, InstanceIds=[own])
    assert (shown["InstanceType"], shown["State"]["Name"]) == ("corral.host", "running")
    assert own not in [each["InstanceId"] for each in instances(ec2)]
    assert refused(lambda: ec2.terminate_instances(InstanceIds=[own]))[0] == "InvalidInstanceID.NotFound"


def test_metadata_options_and_monitoring_are_stored(ec2: Any) -> None:
    (launched,) = run(ec2, "m5.large", MetadataOptions={"HttpTokens": "required"})
    assert instances(ec2, InstanceIds=[launched])[0]["MetadataOptions"]["HttpTokens"] == "required"
    changed = ec2.modify_instance_metadata_options(InstanceId=launched, HttpPutResponseHopLimit=2)["InstanceMetadataOptions"]
    assert (changed["HttpTokens"], changed["HttpPutResponseHopLimit"]) == ("required", 2)
    monitored = ec2.monitor_instances(InstanceIds=[launched])["InstanceMonitorings"][0]["Monitoring"]["State"]
    assert monitored == instances(ec2, InstanceIds=[launched])[0]["Monitoring"]["State"] == "enabled"


def test_instances_survive_a_restart_and_corral_toml_maps_types(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("sim:4")
    corral.data.mkdir(mode=0o700)
    (corral.data / "corral.toml").write_text(
        '[instance-types]\np3.16xlarge = {gpus = 4}\n"lab.large" = {gpus = 1, vcpus = 2, memory_gib = 8}\n'
    )
    corral.start()
    ec2, ecs = corral.client("ec2"), corral.client("ecs")
    (large,) = run(ec2, "p3.16xlarge", UserData=JOIN.format("default"))
    ecs.register_task_definition(family="all", containerDefinitions=[container(["sleep", "600"], gpus=4)])
    arn = next(each for each in ecs.list_container_instances()["containerInstanceArns"] if ec2_id_of(ecs, each) == large)
    task = ecs.start_task(taskDefinition="all", containerInstances=[arn])["tasks"][0]
    assert len(task["containers"][0]["gpuIds"]) == 4
    corral.kill("corral.server")
    corral.start()
    assert instances(ec2, InstanceIds=[large])[0]["State"]["Name"] == "running"
    assert ec2_id_of(ecs, arn) == large
    ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [task["taskArn"]])
    ec2.terminate_instances(InstanceIds=[large])
    eventually(lambda: instances(ec2, InstanceIds=[large])[0]["State"]["Name"] == "terminated", "terminated")
    assert len(run(ec2, "lab.large", 4)) == 4
    (own,) = ec2.describe_instance_types(InstanceTypes=["lab.large"])["InstanceTypes"]
    assert own["MemoryInfo"]["SizeInMiB"] == 8 * 1024 and own["GpuInfo"]["Gpus"][0]["Count"] == 1
    corral.kill("corral.node")  # the host is silent: its instances are impaired
    statuses = [each["InstanceStatus"]["Status"] for each in ec2.describe_instance_status()["InstanceStatuses"]]
    assert statuses == ["ok"] * 4


def ec2_id_of(ecs: Any, arn: str) -> str:
    found = ecs.describe_container_instances(containerInstances=[arn])["containerInstances"]
    return str(found[0]["ec2InstanceId"])
