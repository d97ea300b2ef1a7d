"""The groups that exist from the first start: `admins`, `users` and `viewers`, with policies for a lab.

They are ordinary groups and policies. Who changes or deletes them, keeps the change: they are made only once in a data folder.
"""

from __future__ import annotations

from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.services.iam.handlers import HANDLERS
from corral.store import Store

PATH = "/corral/"
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}
# What everyone may see: hosts, GPUs, who runs and waits, and metrics. No environment, command line, log or object is in it.
SEES = [
    "autoscaling:Describe*", "batch:DescribeComputeEnvironments", "batch:DescribeJobQueues", "batch:DescribeSchedulingPolicies",
    "cloudwatch:Describe*", "cloudwatch:Get*", "cloudwatch:List*", "corral:DescribeGpus", "corral:DescribeHosts",
    "corral:DescribeInstances", "corral:DescribeQueueWorkers", "corral:GetHistory", "corral:GetStatus", "corral:GetUsage",
    "corral:ListLenders", "corral:ListRuns", "corral:ListTaskNames", "ec2:Describe*", "ecs:DescribeCapacityProviders",
    "ecs:DescribeClusters", "ecs:DescribeContainerInstances", "ecs:List*",
]  # fmt: skip
# What people do with what is theirs. `corral:RunOnHost` is missing: their tasks run in containers.
USES = [
    "application-autoscaling:*", "autoscaling:*", "batch:*", "cloudformation:*", "cloudtrail:LookupEvents", "cloudwatch:*",
    "corral:DescribeLogStates", "corral:ListOutputFiles", "corral:SignalTask", "corral:UpdateWaitingTasks", "ec2:*", "ecr:*",
    "ecs:*", "lambda:*", "logs:*", "s3:*", "secretsmanager:*", "sns:*", "sqs:*", "ssm:*",
]  # fmt: skip
# What they need of things that belong to others.
SHARED: list[dict[str, Any]] = [
    {"Sid": "SubmitToAnyQueue", "Effect": "Allow", "Action": "batch:SubmitJob", "Resource": "arn:aws:batch:*:*:job-queue/*"},
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
    "CorralViewers": [{"Sid": "SeeTheCluster", "Effect": "Allow", "Action": SEES, "Resource": "*"}],
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
        made = HANDLERS["CreatePolicy"](tx, {"PolicyName": name, "Path": PATH, "PolicyDocument": text}, caller)
        arns[name] = made["Policy"]["Arn"]
    for group, policy in GROUPS.items():
        if tx.store.stored.get("iam", "group", "", group) is None:
            HANDLERS["CreateGroup"](tx, {"GroupName": group}, caller)
            HANDLERS["AttachGroupPolicy"](tx, {"GroupName": group, "PolicyArn": arns.get(policy, policy)}, caller)
