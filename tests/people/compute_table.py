"""Attempts on tasks, services, jobs, functions, instances and groups of another owner, and on roles that are passed to them."""

from __future__ import annotations

from harness import REGION
from people.attempts import ACCOUNT, Params, api, listing
from people.world import zipped

ROLE = f"arn:aws:iam::{ACCOUNT}:role/<them>-role"
MY_ROLE = f"arn:aws:iam::{ACCOUNT}:role/<me>-role"
DEFINITION = f"arn:aws:ecs:{REGION}:{ACCOUNT}:task-definition/<them>-task:1"
CONTAINER: Params = {"name": "main", "image": "corral/host", "memory": 64, "command": ["true"]}
MINE: Params = {"family": "<me>-other", "containerDefinitions": [CONTAINER]}
PASSED: Params = {"action": "iam:PassRole"}
TASK, SPARE = "task/default/<task>", "task/default/<spare_task>"
SERVICE = f"arn:aws:ecs:{REGION}:{ACCOUNT}:service/default/<them>-service"
THEIR_SERVICE: Params = {"service": "<them>-service"}
EXECUTE: Params = {"task": "<task>", "command": "true", "interactive": True}
TAGS: Params = {"tags": [{"key": "a", "value": "b"}]}
PROPERTIES: Params = {
    "image": "corral/host", "command": ["true"],
    "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}],
}  # fmt: skip


def secret_container(value: str) -> Params:
    return {**MINE, "containerDefinitions": [{**CONTAINER, "secrets": [{"name": "S", "valueFrom": value}]}]}


def submitted(**more: object) -> Params:
    return {"jobName": "x", "jobQueue": "line", "jobDefinition": "<me>-job", **more}


TASKS = (
    api("describe a task", "ecs.describe_tasks", {"tasks": ["<task>"]}, TASK),
    api("describe a task among one's own", "ecs.describe_tasks", {"tasks": ["<my_task>", "<task>"]}, TASK),
    api("run a command in a task", "ecs.execute_command", EXECUTE, TASK),
    api("signal a task", "corral.signal_task", {"task": "<spare_task>", "signal": "SIGUSR1"}, SPARE, is_last=True),
    api("list the output files of a task", "corral.list_output_files", {"task": "<task>"}, TASK),
    api("protect a task", "ecs.update_task_protection", {"cluster": "default", "tasks": ["<task>"], "protectionEnabled": False},
        TASK,
        control=""),
    api("see the protection of a task", "ecs.get_task_protection", {"cluster": "default", "tasks": ["<task>"]}, TASK),
    api("tag a task", "ecs.tag_resource", {"resourceArn": f"arn:aws:ecs:{REGION}:{ACCOUNT}:{TASK}", **TAGS}, TASK),
    api("see the tags of a task", "ecs.list_tags_for_resource", {"resourceArn": f"arn:aws:ecs:{REGION}:{ACCOUNT}:{TASK}"}, TASK),
    api("see a task definition", "ecs.describe_task_definition", {"taskDefinition": "<them>-task:1"}, DEFINITION),
    api("run the task of another", "ecs.run_task", {"taskDefinition": "<them>-task:1", "count": 1}, DEFINITION),
    api("run it with another command", "ecs.run_task", {"taskDefinition": "<them>-task:1", "overrides": {"containerOverrides": [
        {"name": "main", "command": ["env"]}]}}, DEFINITION),
    api("run it with one's own role", "ecs.run_task", {"taskDefinition": "<them>-task:1", "overrides": {"taskRoleArn": MY_ROLE}},
        DEFINITION),
    api("pass a role to a task definition", "ecs.register_task_definition", {**MINE, "taskRoleArn": ROLE}, ROLE, **PASSED),
    api("pass an execution role", "ecs.register_task_definition", {**MINE, "executionRoleArn": ROLE}, ROLE, **PASSED),
    api("pass a role by an override", "ecs.run_task", {"taskDefinition": "<me>-task", "overrides": {"taskRoleArn": ROLE}}, ROLE,
        **PASSED),
    api("pass an execution role by an override", "ecs.run_task", {"taskDefinition": "<me>-task", "overrides": {
        "executionRoleArn": ROLE}}, ROLE, **PASSED),
    api("get a secret as a variable", "ecs.register_task_definition", secret_container("<secret>"), "<secret>",
        action="secretsmanager:GetSecretValue"),
    api("get a parameter as a variable", "ecs.register_task_definition", secret_container("/<them>/rate"),
        "parameter/<them>/rate", action="ssm:GetParameters"),
    api("get an object as an environment", "ecs.register_task_definition", {**MINE, "containerDefinitions": [{**CONTAINER,
        "environmentFiles": [{"type": "s3", "value": "arn:aws:s3:::<them>-data/k.env"}]}]}, "<them>-data/k.env",
        action="s3:GetObject"),
    api("get it by an override", "ecs.run_task", {"taskDefinition": "<me>-task",
        "overrides": {"containerOverrides": [{"name": "main",
        "environmentFiles": [{"type": "s3", "value": "arn:aws:s3:::<them>-data/k.env"}]}]}}, "<them>-data/k.env",
        action="s3:GetObject"),
    listing("list the task definitions", "ecs.list_task_definitions", {}, "/<them>-task:"),
    listing("list the families", "ecs.list_task_definition_families", {}, "<them>-task"),
    api("see a service", "ecs.describe_services", {"services": ["<them>-service"]}, SERVICE),
    api("scale a service", "ecs.update_service", {**THEIR_SERVICE, "desiredCount": 0}, SERVICE),
    api("deploy another's task as a service", "ecs.create_service", {"serviceName": "<me>-x", "taskDefinition": "<them>-task:1",
        "desiredCount": 0}, DEFINITION, action="ecs:RunTask"),
    api("deploy it in one's own service", "ecs.update_service", {"service": "<me>-service", "taskDefinition": "<them>-task:1"},
        DEFINITION, action="ecs:RunTask"),
    api("deploy one's task in another's service", "ecs.update_service", {**THEIR_SERVICE, "taskDefinition": "<me>-task:1"},
        SERVICE),
    api("list the deployments of a service", "ecs.list_service_deployments", THEIR_SERVICE, SERVICE),
    api("see the revision of a service", "ecs.describe_service_revisions", {"serviceRevisionArns": ["<revision>"]}, "<revision>"),
    api("see the deployment of a service", "ecs.describe_service_deployments", {"serviceDeploymentArns": ["<deployed>"]},
        "<deployed>"),
    api("tag a service", "ecs.tag_resource", {"resourceArn": SERVICE, **TAGS}, SERVICE),
    api("scale a service by a policy", "application-autoscaling.register_scalable_target", {"ServiceNamespace": "ecs",
        "ResourceId": "service/default/<them>-service", "ScalableDimension": "ecs:service:DesiredCount", "MinCapacity": 0,
        "MaxCapacity": 1}, "scalable-target/"),
    api("schedule the size of a service", "application-autoscaling.put_scheduled_action", {"ServiceNamespace": "ecs",
        "ResourceId": "service/default/<them>-service", "ScalableDimension": "ecs:service:DesiredCount", "ScheduledActionName": "x",
        "Schedule": "rate(1 day)", "ScalableTargetAction": {"MinCapacity": 0}}, "scalable-target/"),
    listing("list the scalable targets", "application-autoscaling.describe_scalable_targets", {"ServiceNamespace": "ecs"},
        "<them>-service"),
    api("change a cluster", "ecs.update_cluster_settings", {"cluster": "<them>-cluster", "settings": [{"name": "containerInsights",
        "value": "disabled"}]}, "cluster/<them>-cluster"),
    api("deregister a host", "ecs.deregister_container_instance", {"containerInstance": "<host>", "force": True}, "<host>",
        control=""),
    api("drain a host", "ecs.update_container_instances_state", {"containerInstances": ["<host>"], "status": "DRAINING"}, "<host>",
        control=""),
    api("set an attribute of a host", "ecs.put_attributes", {"attributes": [{"name": "x", "value": "y", "targetId": "<host>"}]},
        "<host>", control=""),
    api("start a task on a host with another's definition", "ecs.start_task", {"taskDefinition": "<them>-task:1",
        "containerInstances": ["<host>"]}, DEFINITION),
    api("change the settings of the account", "ecs.put_account_setting_default", {"name": "containerInsights", "value": "enabled"},
        control="root"),
    api("end the credentials of a task", "corral.revoke_sessions", {"task": "<spare_task>"}, SPARE, control=""),
    api("stop a task", "ecs.stop_task", {"task": "<spare_task>"}, SPARE, is_last=True),
    api("deregister a task definition", "ecs.deregister_task_definition", {"taskDefinition": "<them>-task:1"}, DEFINITION,
        is_last=True),
    api("delete a scalable target", "application-autoscaling.deregister_scalable_target", {"ServiceNamespace": "ecs",
        "ResourceId": "service/default/<them>-service", "ScalableDimension": "ecs:service:DesiredCount"}, "scalable-target/",
        is_last=True),
    api("delete a service", "ecs.delete_service", {**THEIR_SERVICE, "force": True}, SERVICE, is_last=True),
    api("delete a cluster", "ecs.delete_cluster", {"cluster": "<them>-cluster"}, "cluster/<them>-cluster", is_last=True),
)  # fmt: skip

JOB_DEFINITION = f"arn:aws:batch:{REGION}:{ACCOUNT}:job-definition/<them>-job:1"
JOBS = (
    listing("describe a job", "batch.describe_jobs", {"jobs": ["<job>"]}, "secret of <them>"),
    listing("list the jobs of a queue", "batch.list_jobs", {"jobQueue": "line", "filters": [{"name": "JOB_NAME", "values": ["*"]}]},
        "'jobName': '<them>-job'"),
    listing("describe the job definitions", "batch.describe_job_definitions", {}, "secret of <them>"),
    api("submit the job of another", "batch.submit_job", submitted(jobDefinition="<them>-job:1"), JOB_DEFINITION),
    api("submit it with another command", "batch.submit_job", submitted(jobDefinition="<them>-job:1", containerOverrides={
        "command": ["env"]}), JOB_DEFINITION),
    api("submit it after a job of one's own", "batch.submit_job", submitted(jobDefinition="<them>-job:1", dependsOn=[
        {"jobId": "<my_job>"}]), JOB_DEFINITION),
    api("submit it as an array", "batch.submit_job", submitted(jobDefinition="<them>-job:1", arrayProperties={"size": 2}),
        JOB_DEFINITION),
    api("pass a role to a job definition", "batch.register_job_definition", {"jobDefinitionName": "<me>-x", "type": "container",
        "containerProperties": {**PROPERTIES, "jobRoleArn": ROLE}}, ROLE, **PASSED),
    api("pass an execution role to a job", "batch.register_job_definition", {"jobDefinitionName": "<me>-x", "type": "container",
        "containerProperties": {**PROPERTIES, "executionRoleArn": ROLE}}, ROLE, **PASSED),
    api("get a secret in a job", "batch.register_job_definition", {"jobDefinitionName": "<me>-x", "type": "container",
        "containerProperties": {**PROPERTIES, "secrets": [{"name": "S", "valueFrom": "<secret>"}]}}, "<secret>",
        action="secretsmanager:GetSecretValue"),
    api("pass a role to a compute environment", "batch.create_compute_environment", {"computeEnvironmentName": "<me>-x",
        "type": "UNMANAGED", "serviceRole": ROLE}, ROLE, **PASSED),
    api("change the queue of all", "batch.update_job_queue", {"jobQueue": "line", "priority": 2}, "job-queue/line", control="root"),
    api("change its environment", "batch.update_compute_environment", {"computeEnvironment": "line", "state": "ENABLED"},
        "compute-environment/line", control="root"),
    api("see a consumable resource", "batch.describe_consumable_resource", {"consumableResource": "<them>-licences"},
        "consumable-resource/<them>-licences"),
    api("change a consumable resource", "batch.update_consumable_resource", {"consumableResource": "<them>-licences",
        "operation": "SET", "quantity": 5}, "consumable-resource/<them>-licences"),
    api("tag a job", "batch.tag_resource", {"resourceArn": f"arn:aws:batch:{REGION}:{ACCOUNT}:job/<job>", "tags": {"a": "b"}},
        "job/<job>"),
    api("see the tags of a job", "batch.list_tags_for_resource", {"resourceArn": f"arn:aws:batch:{REGION}:{ACCOUNT}:job/<job>"},
        "job/<job>"),
    api("cancel a job", "batch.cancel_job", {"jobId": "<job>", "reason": "x"}, "job/<job>"),
    api("terminate a job", "batch.terminate_job", {"jobId": "<spare_job>", "reason": "x"}, "job/<spare_job>", is_last=True),
    api("deregister a job definition", "batch.deregister_job_definition", {"jobDefinition": "<them>-job:1"}, JOB_DEFINITION,
        is_last=True),
)  # fmt: skip

FUNCTION = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:<them>-fn"
NAME: Params = {"FunctionName": "<them>-fn"}
MAPPING = ":event-source-mapping:<mapping>"
FUNCTIONS = (
    api("see a function", "lambda.get_function", NAME, FUNCTION),
    api("see the variables of a function", "lambda.get_function_configuration", NAME, FUNCTION),
    api("invoke a function", "lambda.invoke", NAME, FUNCTION, action="lambda:InvokeFunction"),
    api("replace the code of a function", "lambda.update_function_code", {**NAME, "ZipFile": zipped("def main(e, c): pass")},
        FUNCTION),
    api("change a function", "lambda.update_function_configuration", {**NAME, "Timeout": 4}, FUNCTION),
    api("open a function", "lambda.add_permission", {**NAME, "StatementId": "<me>", "Action": "lambda:InvokeFunction",
        "Principal": "*"}, FUNCTION),
    api("see the policy of a function", "lambda.get_policy", NAME, FUNCTION, control=""),
    listing("list the functions", "lambda.list_functions", {}, "<them>-fn"),
    api("pass a role to a function", "lambda.create_function", {"FunctionName": "<me>-x", "Runtime": "python3.11",
        "Handler": "code.main", "Role": ROLE, "Code": {"ZipFile": zipped("x = 1")}}, ROLE, **PASSED),
    api("pass a role to one's own function", "lambda.update_function_configuration", {"FunctionName": "<me>-fn", "Role": ROLE},
        ROLE,
        **PASSED),
    api("take the code from another's bucket", "lambda.create_function", {"FunctionName": "<me>-y", "Runtime": "python3.11",
        "Handler": "code.main", "Role": MY_ROLE, "Code": {"S3Bucket": "<them>-data", "S3Key": "k"}}, "<them>-data/k",
        action="s3:GetObject", control=""),
    api("let another's queue invoke one's function", "lambda.create_event_source_mapping", {"FunctionName": "<me>-fn",
        "EventSourceArn": "<queue_arn>", "Enabled": False}, expected="InvalidParameterValueException",
        says="The function belongs to user/bob, who does not have permissions to call ReceiveMessage on SQS"),
    api("let one's queue invoke another's function", "lambda.create_event_source_mapping", {"FunctionName": "<them>-fn",
        "EventSourceArn": "<my_queue_arn>", "Enabled": False}, FUNCTION, action="lambda:InvokeFunction", control=""),
    api("see a mapping", "lambda.get_event_source_mapping", {"UUID": "<mapping>"}, MAPPING),
    api("start a mapping", "lambda.update_event_source_mapping", {"UUID": "<mapping>", "Enabled": False}, MAPPING),
    api("turn one's own mapping to another's function", "lambda.update_event_source_mapping", {"UUID": "<my_mapping>",
        "FunctionName": "<them>-fn"}, FUNCTION, action="lambda:InvokeFunction"),
    listing("list the mappings", "lambda.list_event_source_mappings", {}, "<mapping>"),
    api("tag a function", "lambda.tag_resource", {"Resource": FUNCTION, "Tags": {"a": "b"}}, FUNCTION),
    api("delete a mapping", "lambda.delete_event_source_mapping", {"UUID": "<mapping>"}, MAPPING, is_last=True),
    api("delete a function", "lambda.delete_function", NAME, FUNCTION, is_last=True),
)  # fmt: skip

GROUP: Params = {"AutoScalingGroupName": "<them>-group"}
MY_GROUP: Params = {"AutoScalingGroupName": "<me>-x", "MinSize": 0, "MaxSize": 1, "AvailabilityZones": [f"{REGION}a"]}
GROUP_ARN = "autoScalingGroupName/<them>-group"
INSTANCE = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/<instance>"
IMAGE = "ami-0123456789abcdef0"
MACHINES = (
    api("change a group", "autoscaling.update_auto_scaling_group", {**GROUP, "MaxSize": 2}, GROUP_ARN),
    api("see the warm pool of a group", "autoscaling.describe_warm_pool", GROUP, GROUP_ARN),
    api("scale a group", "autoscaling.set_desired_capacity", {**GROUP, "DesiredCapacity": 0}, GROUP_ARN),
    api("add a policy to a group", "autoscaling.put_scaling_policy", {**GROUP, "PolicyName": "p", "AdjustmentType": "ExactCapacity",
        "ScalingAdjustment": 0}, GROUP_ARN),
    api("schedule the size of a group", "autoscaling.put_scheduled_update_group_action", {**GROUP, "ScheduledActionName": "x",
        "Recurrence": "0 0 1 1 *", "MinSize": 0}, GROUP_ARN),
    api("add a hook to a group", "autoscaling.put_lifecycle_hook", {**GROUP, "LifecycleHookName": "h",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING"}, GROUP_ARN),
    api("pass a role to a hook of one's own group", "autoscaling.put_lifecycle_hook", {"AutoScalingGroupName": "<me>-group",
        "LifecycleHookName": "h", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "RoleARN": ROLE,
        "NotificationTargetARN": "<my_queue_arn>"}, ROLE, **PASSED),
    api("let one's group notify another's topic", "autoscaling.put_notification_configuration", {
        "AutoScalingGroupName": "<me>-group", "TopicARN": "<topic>", "NotificationTypes": ["autoscaling:EC2_INSTANCE_LAUNCH"]},
        "<topic>", action="sns:Publish"),
    api("let one's hook notify another's queue", "autoscaling.put_lifecycle_hook", {"AutoScalingGroupName": "<me>-group",
        "LifecycleHookName": "h", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING", "RoleARN": MY_ROLE,
        "NotificationTargetARN": "<queue_arn>"}, "<them>-jobs", action="sqs:SendMessage"),
    api("tag a group", "autoscaling.create_or_update_tags", {"Tags": [{"ResourceId": "<them>-group",
        "ResourceType": "auto-scaling-group", "Key": "a", "Value": "b", "PropagateAtLaunch": False}]}, GROUP_ARN),
    api("make a group of another's launch configuration", "autoscaling.create_auto_scaling_group", {**MY_GROUP,
        "LaunchConfigurationName": "<them>-launch"}, "launchConfigurationName/<them>-launch"),
    api("make a group of another's launch template", "autoscaling.create_auto_scaling_group", {**MY_GROUP,
        "AutoScalingGroupName": "<me>-y", "LaunchTemplate": {"LaunchTemplateId": "<template>"}}, "launch-template/<template>",
        action="ec2:RunInstances"),
    api("make a group of another's instance", "autoscaling.create_auto_scaling_group", {**MY_GROUP, "InstanceId": "<instance>",
        "AutoScalingGroupName": "<me>-z"}, INSTANCE),
    api("take another's instance into one's group", "autoscaling.attach_instances", {"AutoScalingGroupName": "<me>-group",
        "InstanceIds": ["<instance>"]}, INSTANCE),
    api("pass a role by an instance profile", "autoscaling.create_launch_configuration", {"LaunchConfigurationName": "<me>-x",
        "ImageId": IMAGE, "InstanceType": "t3.nano", "IamInstanceProfile": "<them>-profile"}, ROLE, **PASSED),
    listing("list the launch configurations", "autoscaling.describe_launch_configurations", {}, "<them>-launch"),
    listing("list the tags of groups", "autoscaling.describe_tags", {}, "<them>-group", control=""),
    api("pass a role to an instance", "ec2.run_instances", {"ImageId": IMAGE, "InstanceType": "t3.nano", "MinCount": 1,
        "MaxCount": 1,
        "IamInstanceProfile": {"Name": "<them>-profile"}}, ROLE, **PASSED),
    api("launch from another's template", "ec2.run_instances", {"LaunchTemplate": {"LaunchTemplateId": "<template>"}, "MinCount": 1,
        "MaxCount": 1, "ImageId": IMAGE}, "launch-template/<template>"),
    listing("see the user data of a template", "ec2.describe_launch_template_versions", {"LaunchTemplateId": "<template>"},
        "c2VjcmV0"),
    api("change a template", "ec2.create_launch_template_version", {"LaunchTemplateId": "<template>", "LaunchTemplateData": {
        "InstanceType": "t3.nano"}}, "launch-template/<template>"),
    api("see the user data of an instance", "ec2.describe_instance_attribute", {"InstanceId": "<instance>",
        "Attribute": "userData"},
        INSTANCE),
    api("change an instance", "ec2.modify_instance_attribute", {"InstanceId": "<instance>",
        "DisableApiTermination": {"Value": False}},
        INSTANCE),
    api("tag an instance", "ec2.create_tags", {"Resources": ["<instance>"], "Tags": [{"Key": "a", "Value": "b"}]}, INSTANCE),
    api("open the ports of a group", "ec2.authorize_security_group_ingress", {"GroupId": "<ports>", "IpProtocol": "tcp",
        "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0"}, "security-group/<ports>"),
    api("interrupt an instance", "corral.interrupt_spot_instance", {"instance": "<instance>"}, INSTANCE, control=""),
    api("stop an instance", "ec2.stop_instances", {"InstanceIds": ["<instance>"]}, INSTANCE, control=""),
    api("terminate an instance", "ec2.terminate_instances", {"InstanceIds": ["<instance>"]}, INSTANCE, is_last=True),
    api("delete a key pair", "ec2.delete_key_pair", {"KeyName": "<them>-key"}, "key-pair/<them>-key", is_last=True),
    api("delete a template", "ec2.delete_launch_template", {"LaunchTemplateId": "<template>"}, "launch-template/<template>",
        is_last=True),
    api("delete a group", "autoscaling.delete_auto_scaling_group", {**GROUP, "ForceDelete": True}, GROUP_ARN, is_last=True),
)  # fmt: skip

ATTEMPTS = (*TASKS, *JOBS, *FUNCTIONS, *MACHINES)
