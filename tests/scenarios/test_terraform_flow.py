"""Terraform on Corral: apply, a plan without changes, an update, a plan without changes again, and destroy.

The test with `terraform` itself runs if TERRAFORM_PLUGINS names a folder with a mirror of the AWS provider
(`terraform providers mirror`). Without it, the other test sends the requests of the provider with boto3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from harness import Corral, eventually

CONFIGURATION = Path(__file__).parent / "terraform" / "main.tf"
PLUGINS = os.environ.get("TERRAFORM_PLUGINS", "")
COMMAND_S = 300.0
NO_CHANGES, CHANGES = 0, 2  # the exit codes of `terraform plan -detailed-exitcode`


class Terraform:
    def __init__(self, corral: Corral, folder: Path) -> None:
        shutil.copy(CONFIGURATION, folder)
        settings = folder / "terraform.rc"
        settings.write_text(
            f'provider_installation {{\n  filesystem_mirror {{ path = "{PLUGINS}" }}\n}}\ndisable_checkpoint = true\n'
        )
        quiet = {
            "HOME": str(folder),
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_IN_AUTOMATION": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._environment = {**corral.environment, **quiet, "AWS_REGION": "us-east-1"}
        self._folder = folder

    def __call__(self, *words: str, code: int = 0) -> str:
        command = ["terraform", *words, "-no-color", "-input=false"]
        done = subprocess.run(command, cwd=self._folder, env=self._environment, timeout=COMMAND_S, capture_output=True, text=True)
        assert done.returncode == code, (words, done.stdout[-4000:], done.stderr[-4000:])
        return done.stdout


@pytest.mark.skipif(not (PLUGINS and shutil.which("terraform")), reason="TERRAFORM_PLUGINS names no mirror of the AWS provider")
def test_terraform(own_corral: Callable[..., Corral], tmp_path: Path) -> None:
    corral = own_corral().start()
    terraform = Terraform(corral, tmp_path)
    terraform("init")
    terraform("apply", "-auto-approve")
    terraform("plan", "-detailed-exitcode", code=NO_CHANGES)
    changed = ("-var", 'ssh_from=["10.0.0.0/8", "192.168.0.0/16"]', "-var", "team=vision")
    terraform("plan", "-detailed-exitcode", *changed, code=CHANGES)
    terraform("apply", "-auto-approve", *changed)
    terraform("plan", "-detailed-exitcode", *changed, code=NO_CHANGES)
    [group] = corral.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert [each["LifecycleState"] for each in group["Instances"]] == ["InService"]
    terraform("destroy", "-auto-approve", *changed)
    assert corral.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])["Vpcs"] == []
    assert [role["RoleName"] for role in corral.client("iam").list_roles()["Roles"]] == []


TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Action": "sts:AssumeRole", "Effect": "Allow", "Sid": "", "Principal": {"Service": "ec2.amazonaws.com"}}],
    }
)
READS_LOGS = json.dumps({"Version": "2012-10-17", "Statement": [{"Action": "logs:Get*", "Effect": "Allow", "Resource": "*"}]})
ECS_POLICY = "arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"


def by(name: str, value: str) -> dict[str, Any]:
    return {"Filters": [{"Name": name, "Values": [value]}]}


def absent(call: Callable[..., Any], code: str, **params: Any) -> None:
    """The provider takes a resource as deleted if its read fails with this code."""
    with pytest.raises(ClientError) as error:
        call(**params)
    assert error.value.response["Error"]["Code"] == code


def test_the_requests_of_terraform(own_corral: Callable[..., Corral]) -> None:
    """The requests that the AWS provider 5 sends for apply, plan and destroy. Each read returns exactly what was given."""
    corral = own_corral().start()
    ec2, iam, ecs, autoscaling = (corral.client(service) for service in ("ec2", "iam", "ecs", "autoscaling"))

    # apply
    tags = [{"Key": "Name", "Value": "gpu"}]
    made = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=[{"ResourceType": "vpc", "Tags": tags}])["Vpc"]
    vpc = made["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1b")["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    group = ec2.create_security_group(GroupName="workers", Description="GPU workers", VpcId=vpc)["GroupId"]
    everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[everything])
    # the provider also revokes the egress to ::/0, which a group has only in VPCs with IPv6
    absent(
        ec2.revoke_security_group_egress, "InvalidPermission.NotFound", GroupId=group,
        IpPermissions=[{"IpProtocol": "-1", "Ipv6Ranges": [{"CidrIpv6": "::/0"}]}],
    )  # fmt: skip
    ingress = {
        "IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "10.0.0.0/8", "Description": "ssh"}],
        "Ipv6Ranges": [], "PrefixListIds": [], "UserIdGroupPairs": [],
    }  # fmt: skip
    egress = {**everything, "Ipv6Ranges": [{"CidrIpv6": "::/0"}], "PrefixListIds": [], "UserIdGroupPairs": []}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ingress])
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[egress])
    iam.create_role(RoleName="gpu", AssumeRolePolicyDocument=TRUST, Path="/", MaxSessionDuration=7200, Tags=tags)
    iam.put_role_policy(RoleName="gpu", PolicyName="queue", PolicyDocument=READS_LOGS)
    policy = iam.create_policy(PolicyName="logs", Path="/ml/", PolicyDocument=READS_LOGS)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="gpu", PolicyArn=policy)
    iam.attach_role_policy(RoleName="gpu", PolicyArn=ECS_POLICY)
    profile = iam.create_instance_profile(InstanceProfileName="gpu", Path="/")["InstanceProfile"]["Arn"]
    iam.add_role_to_instance_profile(InstanceProfileName="gpu", RoleName="gpu")
    insights = [{"name": "containerInsights", "value": "enabled"}]
    cluster = ecs.create_cluster(clusterName="gpu", settings=insights)["cluster"]["clusterArn"]
    data = {
        "ImageId": "ami-0123456789abcdef0", "InstanceType": "t3.large", "SecurityGroupIds": [group], "UserData": "ZWNobw==",
        "IamInstanceProfile": {"Arn": profile}, "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "DeleteOnTermination": True}}
        ],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
    }  # fmt: skip
    template = ec2.create_launch_template(LaunchTemplateName="gpu-1", LaunchTemplateData=data, ClientToken="terraform-1")
    template_id = template["LaunchTemplate"]["LaunchTemplateId"]
    named = {"ResourceId": "gpu", "ResourceType": "auto-scaling-group"}
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName="gpu", MinSize=0, MaxSize=2, DesiredCapacity=1, VPCZoneIdentifier=subnet,
        LaunchTemplate={"LaunchTemplateId": template_id, "Version": "$Latest"}, NewInstancesProtectedFromScaleIn=False,
        Tags=[{**named, "Key": "team", "Value": "ml", "PropagateAtLaunch": True}],
    )  # fmt: skip

    def in_service() -> bool:
        [found] = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpu"])["AutoScalingGroups"]
        return [each["LifecycleState"] for each in found["Instances"]] == ["InService"]

    eventually(in_service, "the group has its instance")

    # plan
    [read] = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]
    assert (read["CidrBlock"], read["Tags"], read["InstanceTenancy"]) == ("10.0.0.0/16", tags, "default")
    attributes = ("enableDnsHostnames", "enableDnsSupport", "enableNetworkAddressUsageMetrics")
    values = [ec2.describe_vpc_attribute(VpcId=vpc, Attribute=name)[name[0].upper() + name[1:]]["Value"] for name in attributes]
    assert values == [True, True, False]
    for describe, member in (
        (ec2.describe_network_acls, "NetworkAcls"), (ec2.describe_security_groups, "SecurityGroups"),
        (ec2.describe_route_tables, "RouteTables"),
    ):  # fmt: skip
        assert describe(**by("vpc-id", vpc))[member]
    [read] = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    assert (read["AvailabilityZone"], read["MapPublicIpOnLaunch"], read.get("Tags", [])) == ("us-east-1b", True, [])
    [read] = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert (read["IpPermissions"], read["IpPermissionsEgress"]) == ([ingress], [egress])
    role = iam.get_role(RoleName="gpu")["Role"]
    assert (role["AssumeRolePolicyDocument"], role["Tags"], role["MaxSessionDuration"]) == (json.loads(TRUST), tags, 7200)
    assert "Description" not in role and "PermissionsBoundary" not in role
    assert iam.list_role_policies(RoleName="gpu")["PolicyNames"] == ["queue"]
    assert iam.get_role_policy(RoleName="gpu", PolicyName="queue")["PolicyDocument"] == json.loads(READS_LOGS)
    attached = iam.list_attached_role_policies(RoleName="gpu")["AttachedPolicies"]
    assert {each["PolicyArn"] for each in attached} == {policy, ECS_POLICY}
    version = iam.get_policy(PolicyArn=policy)["Policy"]["DefaultVersionId"]
    assert iam.get_policy_version(PolicyArn=policy, VersionId=version)["PolicyVersion"]["Document"] == json.loads(READS_LOGS)
    assert [each["RoleName"] for each in iam.get_instance_profile(InstanceProfileName="gpu")["InstanceProfile"]["Roles"]] == ["gpu"]
    [read] = ecs.describe_clusters(clusters=[cluster], include=["TAGS", "CONFIGURATIONS", "SETTINGS"])["clusters"]
    assert read["settings"] == insights
    [read] = ec2.describe_launch_templates(LaunchTemplateIds=[template_id])["LaunchTemplates"]
    number = str(read["LatestVersionNumber"])
    [read] = ec2.describe_launch_template_versions(LaunchTemplateId=template_id, Versions=[number])["LaunchTemplateVersions"]
    assert read["LaunchTemplateData"] == data
    [read] = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpu"])["AutoScalingGroups"]
    assert read["LaunchTemplate"] == {"LaunchTemplateId": template_id, "LaunchTemplateName": "gpu-1", "Version": "$Latest"}
    assert read["Tags"] == [{**named, "Key": "team", "Value": "ml", "PropagateAtLaunch": True}]

    # destroy
    autoscaling.update_auto_scaling_group(AutoScalingGroupName="gpu", DesiredCapacity=0, MinSize=0, MaxSize=0)

    def has_no_instance() -> bool:
        [found] = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpu"])["AutoScalingGroups"]
        return found["Instances"] == []

    eventually(has_no_instance, "the group has no instance")
    autoscaling.delete_auto_scaling_group(AutoScalingGroupName="gpu", ForceDelete=False)
    eventually(lambda: not autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["gpu"])["AutoScalingGroups"])
    ec2.delete_launch_template(LaunchTemplateId=template_id)
    absent(ec2.describe_launch_templates, "InvalidLaunchTemplateId.NotFound", LaunchTemplateIds=[template_id])
    ecs.delete_cluster(cluster=cluster)
    iam.remove_role_from_instance_profile(InstanceProfileName="gpu", RoleName="gpu")
    iam.delete_instance_profile(InstanceProfileName="gpu")
    for arn in (policy, ECS_POLICY):
        iam.detach_role_policy(RoleName="gpu", PolicyArn=arn)
    assert [each["VersionId"] for each in iam.list_policy_versions(PolicyArn=policy)["Versions"]] == ["v1"]
    iam.delete_policy(PolicyArn=policy)
    iam.delete_role_policy(RoleName="gpu", PolicyName="queue")
    assert iam.list_instance_profiles_for_role(RoleName="gpu")["InstanceProfiles"] == []
    iam.delete_role(RoleName="gpu")
    absent(iam.get_role, "NoSuchEntity", RoleName="gpu")
    # the provider looks for leftover interfaces of Lambda functions and of others
    for name, value in (("group-id", group), ("subnet-id", subnet)):
        assert ec2.describe_network_interfaces(**by(name, value))["NetworkInterfaces"] == []
    ec2.delete_security_group(GroupId=group)
    absent(ec2.describe_security_groups, "InvalidGroup.NotFound", GroupIds=[group])
    ec2.delete_subnet(SubnetId=subnet)
    absent(ec2.describe_subnets, "InvalidSubnetID.NotFound", SubnetIds=[subnet])
    ec2.delete_vpc(VpcId=vpc)
    absent(ec2.describe_vpcs, "InvalidVpcID.NotFound", VpcIds=[vpc])
