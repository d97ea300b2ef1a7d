"""The groups that exist from the first start: `admins`, `users` and `viewers`, with policies for a lab.

They are ordinary groups and policies. Who changes or deletes them, keeps the change: they are made only once in a data folder.
"""

from __future__ import annotations

from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.operations.stored_resources import create, put
from corral.services.iam.groups import GROUP
from corral.services.iam.policies import POLICY
from corral.store import Store

PATH = "/corral/"
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}
# What everyone may see: hosts, GPUs, who runs and waits, networks and metrics. No environment, user data, command line, tag, log or
# object is in it. Nor is ecs:ListTasks, so that a name in a command of a user means a task of this user, also if others have tasks
# with the same name.
SEES = [
    "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeAutoScalingInstances", "autoscaling:DescribeScalingActivities",
    "batch:DescribeComputeEnvironments", "batch:DescribeJobQueues", "batch:DescribeSchedulingPolicies",
    "cloudwatch:Describe*", "cloudwatch:Get*", "cloudwatch:List*",
    "corral:DescribeGpus", "corral:DescribeHosts", "corral:DescribeInstances", "corral:DescribeQueueWorkers", "corral:GetStatus",
    "corral:GetUsage", "corral:ListLenders", "corral:ListRuns",
    "ec2:DescribeAccountAttributes", "ec2:DescribeAvailabilityZones", "ec2:DescribeImages", "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceType*", "ec2:DescribeInstances", "ec2:DescribeNetwork*", "ec2:DescribePrefixLists", "ec2:DescribeRegions",
    "ec2:DescribeRouteTables", "ec2:DescribeSecurityGroup*", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
    "ec2:DescribeVpc*",
    "ecs:DescribeCapacityProviders", "ecs:DescribeClusters", "ecs:DescribeContainerInstances", "ecs:ListAttributes",
    "ecs:ListClusters", "ecs:ListContainerInstances", "ecs:ListServices",
]  # fmt: skip
# What people do with what is theirs. `corral:RunOnHost` is missing: their tasks run in containers. So is what changes a setting of
# the whole account (ecs:PutAccountSettingDefault). The settings of the registry belong to the root user.
USES = [
    "application-autoscaling:*", "autoscaling:*", "batch:*", "cloudformation:*", "cloudtrail:LookupEvents", "cloudwatch:*",
    "corral:DescribeLimits", "corral:DescribeLogStates", "corral:DescribeUsage", "corral:DescribeTaskPause",
    "corral:GetHistory", "corral:ListOutputFiles", "corral:ListTaskNames", "corral:PauseTask", "corral:ResumeTask",
    "corral:SignalTask", "corral:UpdateWaitingTasks", "ec2:*", "ecr:*",
    "ecs:C*", "ecs:D*", "ecs:E*",
    "ecs:G*", "ecs:L*", "ecs:PutAttributes", "ecs:PutClusterCapacityProviders", "ecs:R*", "ecs:S*", "ecs:T*", "ecs:U*",
    "lambda:*", "logs:*", "s3:*", "secretsmanager:*", "sns:*", "sqs:*", "ssm:*",
]  # fmt: skip
# What they need of things that belong to others: the queues of Batch that root has created, the default network, and images of
# machines.
SHARED: list[dict[str, Any]] = [
    {"Sid": "SubmitToSharedQueues", "Effect": "Allow", "Action": "batch:SubmitJob", "Resource": "arn:aws:batch:*:*:job-queue/*",
     "Condition": {"StringEquals": {"corral:Owner": "root"}}},
    {"Sid": "LaunchInAnyNetwork", "Effect": "Allow", "Action": "ec2:RunInstances",
     "Resource": ["arn:aws:ec2:*:*:image/*", "arn:aws:ec2:*:*:network-interface/*", "arn:aws:ec2:*:*:security-group/*",
                  "arn:aws:ec2:*:*:subnet/*", "arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*::image/*"]},
    {"Sid": "OwnKeys", "Effect": "Allow",
     "Action": ["iam:CreateAccessKey", "iam:DeleteAccessKey", "iam:GetAccessKeyLastUsed", "iam:GetUser", "iam:ListAccessKeys",
                "iam:ListGroupsForUser", "iam:UpdateAccessKey"],
     "Resource": "arn:aws:iam::*:user/${aws:username}"},
]  # fmt: skip
POLICIES: dict[str, list[dict[str, Any]]] = {
    "CorralUsers": [
        {"Sid": "SeeTheCluster", "Effect": "Allow", "Action": SEES, "Resource": "*"},
        {"Sid": "UseWhatIsTheirs", "Effect": "Allow", "Action": USES, "Resource": "*", "Condition": OWN},
        *SHARED,
    ],
    "CorralViewers": [{"Sid": "SeeTheCluster", "Effect": "Allow", "Action": [*SEES, "ecs:ListTasks"], "Resource": "*"}],
}
GROUPS = {
    "admins": ADMINISTRATOR,
    "users": "CorralUsers",
    "viewers": "CorralViewers",
}


def make_default_groups(tx: Tx[Store]) -> None:
    """Make the groups and their policies, if this was not done before in this data folder."""
    if not tx.store.stored.add("iam", "made", "", "default-groups", {}, tx.now_s):
        return
    caller = Caller(tx.settings.account, "us-east-1", root_user(tx.settings.account))
    arns = {}
    for name, statements in POLICIES.items():
        text = orjson.dumps({"Version": "2012-10-17", "Statement": statements}, option=orjson.OPT_INDENT_2).decode()
        arns[name] = create(tx, caller, POLICY, {"PolicyName": name, "Path": PATH, "PolicyDocument": text})["Arn"]
    for name, policy in GROUPS.items():
        if tx.store.stored.get("iam", "group", "", name) is None:
            group = create(tx, caller, GROUP, {"GroupName": name})
            put(tx, caller, GROUP, {**group, "_attached": [arns.get(policy, policy)]})
