"""Decisions about access to the host: which members of requests give it, and which operations do not ask for the permission.

`test_host_access.py` and `test_passed_roles.py` compare them with botocore's models. Change them knowingly.
"""

from __future__ import annotations

import re
from typing import Any

CONTAINER, VOLUME = "containerDefinitions.[]", "volumes.[]"
# Member of a task definition → values that give access to the host.
GIVES: dict[str, list[Any]] = {
    "networkMode": ["host", "container:other"],
    "pidMode": ["host", "container:other"],
    "ipcMode": ["host", "shareable"],
    f"{VOLUME}.host.sourcePath": ["/", "relative"],
    f"{VOLUME}.dockerVolumeConfiguration.scope": ["shared"],
    f"{VOLUME}.dockerVolumeConfiguration.driver": ["rexray/ebs"],
    f"{VOLUME}.dockerVolumeConfiguration.driverOpts": [{"type": "none", "o": "bind", "device": "/"}, {"mountpoint": "/"}],
    f"{CONTAINER}.image": ["corral/host", "corral/host:2"],
    f"{CONTAINER}.privileged": [True],
    f"{CONTAINER}.linuxParameters.devices": [[{"hostPath": "/dev/sda"}]],
    f"{CONTAINER}.linuxParameters.capabilities.add": [
        [each]
        for each in (
            "ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "CAP_NET_ADMIN", "NET_RAW", "AUDIT_CONTROL", "sys_rawio", "FUTURE",
        )
    ],
    f"{CONTAINER}.dockerSecurityOptions": [
        [each]
        for each in (
            "seccomp=unconfined", "seccomp:unconfined", 'seccomp={"defaultAction": "SCMP_ACT_ALLOW"}', "seccomp=/etc/profile.json",
            "apparmor=unconfined", "apparmor:mine", "label=disable", "label:type:spc_t", "label=level:s0", "systempaths=unconfined",
            "writable-cgroups=true", "credentialspec:file://x.json",
        )
    ],
    f"{CONTAINER}.logConfiguration": [
        {"logDriver": driver, "options": options}
        for driver, options in (
            ("syslog", {}), ("journald", {}), ("fluentd", {}), ("gelf", {}), ("splunk", {"splunk-token": "x"}),
            ("syslog", {"syslog-address": "unix:///run/docker.sock"}), ("syslog", {"syslog-address": "unixgram:///dev/log"}),
            ("syslog", {"syslog-address": "/dev/log"}), ("syslog", {"syslog-address": "tcp://127.0.0.1:514"}),
            ("syslog", {"syslog-address": "tcp+tls://logs:6514", "syslog-tls-key": "/etc/shadow"}),
            ("fluentd", {"fluentd-address": "unix:///run/fluent.sock"}), ("fluentd", {"fluentd-address": "localhost:24224"}),
            ("fluentd", {"fluentd-address": "LOCALHOST.:1"}), ("fluentd", {"fluentd-address": "0x7f.1:1"}),
            ("gelf", {"gelf-address": "udp://[::1]:12201"}), ("gelf", {"gelf-address": "udp://[::ffff:127.0.0.1]:12201"}),
            ("gelf", {"gelf-address": "tcp://0.0.0.0:1"}), ("gelf", {"gelf-address": "udp://[broken"}),
            ("splunk", {"splunk-url": "http://127.1.2.3"}), ("splunk", {"splunk-url": "https://s", "splunk-capath": "/etc/shadow"}),
        )
    ],
}  # fmt: skip
CARRIERS = {  # the members of what GIVES names as a whole
    f"{CONTAINER}.linuxParameters.devices": "hostPath containerPath permissions",
    f"{CONTAINER}.logConfiguration": "logDriver options",
    f"{CONTAINER}.logConfiguration.secretOptions": "name valueFrom",
}
# The other members of a task definition: they concern the container itself, have no effect, or are refused. Change it knowingly.
HARMLESS = {
    "": "family taskRoleArn executionRoleArn requiresCompatibilities cpu memory enableFaultInjection",
    CONTAINER: (
        "name cpu memory memoryReservation links essential entryPoint command startTimeout stopTimeout versionConsistency hostname "
        "user workingDirectory disableNetworking readonlyRootFilesystem dnsServers dnsSearchDomains interactive pseudoTerminal "
        "dockerLabels credentialSpecs"
    ),
    f"{CONTAINER}.repositoryCredentials": "credentialsParameter",
    f"{CONTAINER}.portMappings": "containerPort hostPort protocol name appProtocol containerPortRange",
    f"{CONTAINER}.restartPolicy": "enabled ignoredExitCodes restartAttemptPeriod",
    f"{CONTAINER}.environment": "name value",
    f"{CONTAINER}.environmentFiles": "value type",  # their writers need the permission
    f"{CONTAINER}.mountPoints": "sourceVolume containerPath readOnly",
    f"{CONTAINER}.volumesFrom": "sourceContainer readOnly",  # a container of the same task
    f"{CONTAINER}.linuxParameters": "initProcessEnabled sharedMemorySize maxSwap swappiness",
    f"{CONTAINER}.linuxParameters.capabilities": "drop",
    f"{CONTAINER}.linuxParameters.tmpfs": "containerPath size mountOptions",
    f"{CONTAINER}.secrets": "name valueFrom",
    f"{CONTAINER}.dependsOn": "containerName condition",
    f"{CONTAINER}.extraHosts": "hostname ipAddress",
    f"{CONTAINER}.ulimits": "name softLimit hardLimit",
    f"{CONTAINER}.healthCheck": "command interval timeout retries startPeriod",
    f"{CONTAINER}.systemControls": "namespace value",  # the engine accepts only those of the container's own namespaces
    f"{CONTAINER}.resourceRequirements": "value type",
    f"{CONTAINER}.resourceRequirements.sharingStrategy.nvidiaMps": "memory maxComputePercent",
    f"{CONTAINER}.firelensConfiguration": "type options",
    VOLUME: "name configuredAtLaunch",
    f"{VOLUME}.dockerVolumeConfiguration": "autoprovision labels",
    f"{VOLUME}.efsVolumeConfiguration": "fileSystemId rootDirectory transitEncryption transitEncryptionPort",
    f"{VOLUME}.efsVolumeConfiguration.authorizationConfig": "accessPointId iam",
    f"{VOLUME}.s3filesVolumeConfiguration": "fileSystemArn rootDirectory transitEncryptionPort accessPointArn",
    f"{VOLUME}.fsxWindowsFileServerVolumeConfiguration": "fileSystemId rootDirectory",
    f"{VOLUME}.fsxWindowsFileServerVolumeConfiguration.authorizationConfig": "credentialsParameter domain",
    "placementConstraints": "type expression",
    "tags": "key value",
    "proxyConfiguration": "type containerName",
    "proxyConfiguration.properties": "name value",
    "inferenceAccelerators": "deviceName deviceType",
    "ephemeralStorage": "sizeInGiB",
    "runtimePlatform": "cpuArchitecture operatingSystemFamily",
    "trustedExecutionConfiguration": "isolationMode attestationPolicy",
}
# The members of a job definition that a task definition does not have.
HARMLESS_IN_BATCH = {
    "": "jobDefinitionName type parameters schedulingPriority propagateTags platformCapabilities tags",
    "nodeProperties": "numNodes mainNode",
    "nodeProperties.nodeRangeProperties": "targetNodes instanceTypes",
    "retryStrategy": "attempts",
    "retryStrategy.evaluateOnExit": "onStatusReason onReason onExitCode action",
    "timeout": "attemptDurationSeconds",
    "consumableResourceProperties.consumableResourceList": "consumableResource quantity",
    "nodeProperties.nodeRangeProperties.[].consumableResourceProperties.consumableResourceList": "consumableResource quantity",
}
HARMLESS_IN_JOBS = (
    "vcpus jobRoleArn instanceType networkConfiguration.assignPublicIp enableExecuteCommand platformVersion "
    "fargatePlatformConfiguration.platformVersion"
)
# What RunTask, StartTask and SubmitJob can override. None of it gives access to the host.
OVERRIDES = (
    "command cpu environment.[].name environment.[].value environmentFiles.[].type environmentFiles.[].value executionRoleArn "
    "memory memoryReservation name resourceRequirements.[].type resourceRequirements.[].value taskRoleArn vcpus instanceType "
    "resourceRequirements.[].sharingStrategy.nvidiaMps.memory resourceRequirements.[].sharingStrategy.nvidiaMps.maxComputePercent "
    "ephemeralStorage.sizeInGiB deviceName deviceType numNodes targetNodes instanceTypes consumableResource quantity"
)
READS = re.compile("(Batch)?(Check|Describe|Filter|Get|Head|List|Simulate|Test|Validate)[A-Z]")
# The other operations that do not ask for `corral:RunOnHost`. Change it knowingly.
ASKS_NOT = {
    "application-autoscaling": "DeleteScalingPolicy DeleteScheduledAction DeregisterScalableTarget TagResource UntagResource",
    # User data is read, and not executed. Instances have no programs of their own.
    "autoscaling": """AttachInstances AttachLoadBalancerTargetGroups AttachLoadBalancers AttachTrafficSources
        BatchDeleteScheduledAction BatchPutScheduledUpdateGroupAction CancelInstanceRefresh CompleteLifecycleAction
        CreateAutoScalingGroup CreateLaunchConfiguration CreateOrUpdateTags DeleteAutoScalingGroup DeleteLaunchConfiguration
        DeleteLifecycleHook DeleteNotificationConfiguration DeletePolicy DeleteScheduledAction DeleteTags DeleteWarmPool
        DetachInstances DetachLoadBalancerTargetGroups DetachLoadBalancers DetachTrafficSources DisableMetricsCollection
        EnableMetricsCollection EnterStandby ExecutePolicy ExitStandby PutLifecycleHook PutNotificationConfiguration
        PutScalingPolicy PutScheduledUpdateGroupAction PutWarmPool RecordLifecycleActionHeartbeat ResumeProcesses
        RollbackInstanceRefresh SetDesiredCapacity SetInstanceHealth SetInstanceProtection StartInstanceRefresh SuspendProcesses
        TerminateInstanceInAutoScalingGroup UpdateAutoScalingGroup""",
    # A job has been checked when it was submitted. Queues and compute environments decide when and where it runs.
    "batch": """CancelJob CancelJobs CreateComputeEnvironment CreateConsumableResource CreateJobQueue CreateSchedulingPolicy
        DeleteComputeEnvironment DeleteConsumableResource DeleteJobQueue DeleteSchedulingPolicy DeregisterJobDefinition TagResource
        TerminateJob TerminateJobs UntagResource UpdateComputeEnvironment UpdateConsumableResource UpdateJobQueue
        UpdateSchedulingPolicy""",
    # Each step of a stack asks with the permissions of the caller who started the operation of the stack.
    "cloudformation": """CancelUpdateStack ContinueUpdateRollback CreateChangeSet CreateStack DeleteChangeSet DeleteStack
        ExecuteChangeSet RollbackStack SetStackPolicy SignalResource UpdateStack UpdateTerminationProtection""",
    "cloudtrail": "LookupEvents",
    "cloudwatch": """DeleteAlarms DeleteDashboards DisableAlarmActions EnableAlarmActions PutCompositeAlarm PutDashboard
        PutMetricAlarm PutMetricData SetAlarmState TagResource UntagResource""",
    # Sessions cannot create tokens for hosts, accept other machines as hosts, and revoke hosts and tokens.
    # The console does for a caller what the caller may do.
    "corral": """AcceptHost CreateConnectCode CreateConsoleLink CreateJoinToken DrainHost EndConsoleSessions ForgetHost
        InterruptSpotInstance PauseTask PeekMessages RemoveUser RenameHost ResumeHost ResumeTask RevokeHost RevokeJoinToken
        RevokeSessions SetGpuFault SetLimits SetUnixAccount SignalTask StopAllTasks UpdateWaitingTasks UpgradeHost""",
    "ec2": """AllocateAddress AssociateAddress AssociateDhcpOptions AssociateRouteTable AttachInternetGateway AttachVpnGateway
        AuthorizeSecurityGroupEgress AuthorizeSecurityGroupIngress CreateDefaultSubnet CreateDefaultVpc CreateDhcpOptions
        CreateImage CreateInternetGateway CreateKeyPair CreateLaunchTemplate CreateLaunchTemplateVersion CreateNatGateway
        CreateNetworkAcl CreateNetworkAclEntry CreateRoute CreateRouteTable CreateSecurityGroup CreateSubnet CreateTags CreateVpc
        CreateVpcEndpoint CreateVpnGateway DeleteDhcpOptions DeleteInternetGateway DeleteKeyPair DeleteLaunchTemplate
        DeleteLaunchTemplateVersions DeleteNatGateway DeleteNetworkAcl DeleteNetworkAclEntry DeleteRoute DeleteRouteTable
        DeleteSecurityGroup DeleteSubnet DeleteTags DeleteVpc DeleteVpcEndpoints DeleteVpnGateway DeregisterImage
        DetachInternetGateway DetachVpnGateway DisassociateAddress DisassociateRouteTable ImportKeyPair ModifyInstanceAttribute
        ModifyInstanceMetadataOptions ModifyLaunchTemplate ModifySecurityGroupRules ModifySubnetAttribute ModifyVpcAttribute
        ModifyVpcEndpoint MonitorInstances RebootInstances RegisterImage ReleaseAddress ReplaceNetworkAclAssociation
        ReplaceNetworkAclEntry ReplaceRoute ReplaceRouteTableAssociation RevokeSecurityGroupEgress RevokeSecurityGroupIngress
        RunInstances StartInstances StopInstances TerminateInstances UnmonitorInstances UpdateSecurityGroupRuleDescriptionsEgress
        UpdateSecurityGroupRuleDescriptionsIngress""",
    "ecr": """BatchDeleteImage CreateRepository DeleteLifecyclePolicy DeleteRegistryPolicy DeleteRepository DeleteRepositoryPolicy
        PutAccountSetting PutImage PutImageScanningConfiguration PutImageTagMutability PutLifecyclePolicy PutRegistryPolicy
        PutRegistryScanningConfiguration PutReplicationConfiguration SetRepositoryPolicy TagResource UntagResource""",
    "ecs": """CreateCapacityProvider CreateCluster DeleteAccountSetting DeleteAttributes DeleteCapacityProvider DeleteCluster
        DeleteService DeleteTaskDefinitions DeleteTaskSet DeregisterContainerInstance DeregisterTaskDefinition
        DiscoverPollEndpoint PutAccountSetting PutAccountSettingDefault PutAttributes PutClusterCapacityProviders
        RegisterContainerInstance StopTask SubmitAttachmentStateChanges SubmitContainerStateChange SubmitTaskStateChange
        TagResource UntagResource UpdateCapacityProvider UpdateCluster UpdateClusterSettings UpdateContainerAgent
        UpdateContainerInstancesState UpdateTaskProtection""",
    # Who may change policies may give themselves any permission.
    "iam": """AddRoleToInstanceProfile AddUserToGroup AttachGroupPolicy AttachRolePolicy AttachUserPolicy CreateAccessKey
        CreateAccountAlias CreateGroup CreateInstanceProfile CreatePolicy CreatePolicyVersion CreateRole
        CreateServiceLinkedRole CreateUser DeleteAccessKey DeleteAccountAlias DeleteGroup DeleteGroupPolicy
        DeleteInstanceProfile DeletePolicy DeletePolicyVersion DeleteRole DeleteRolePermissionsBoundary DeleteRolePolicy
        DeleteServiceLinkedRole DeleteUser DeleteUserPermissionsBoundary DeleteUserPolicy DetachGroupPolicy
        DetachRolePolicy DetachUserPolicy GenerateServiceLastAccessedDetails PutGroupPolicy PutRolePermissionsBoundary
        PutRolePolicy PutUserPermissionsBoundary PutUserPolicy RemoveRoleFromInstanceProfile RemoveUserFromGroup
        SetDefaultPolicyVersion TagInstanceProfile TagPolicy TagRole TagUser UntagInstanceProfile UntagPolicy UntagRole
        UntagUser UpdateAccessKey UpdateAssumeRolePolicy UpdateGroup UpdateRole UpdateRoleDescription UpdateUser""",
    # The input of Invoke is data, and so are the messages of a queue.
    "lambda": """AddPermission CreateEventSourceMapping DeleteEventSourceMapping DeleteFunction Invoke RemovePermission TagResource
        UntagResource UpdateEventSourceMapping""",
    "logs": """CreateLogGroup CreateLogStream DeleteLogGroup DeleteLogStream DeleteMetricFilter DeleteRetentionPolicy PutLogEvents
        PutLogGroupDeletionProtection PutMetricFilter PutRetentionPolicy TagLogGroup TagResource UntagLogGroup UntagResource""",
    # The writer of an object is asked about when a task, a function or a stack reads the object.
    "s3": """AbortMultipartUpload CompleteMultipartUpload CopyObject CreateBucket CreateMultipartUpload DeleteBucket
        DeleteBucketAnalyticsConfiguration DeleteBucketCors DeleteBucketEncryption DeleteBucketIntelligentTieringConfiguration
        DeleteBucketInventoryConfiguration DeleteBucketLifecycle DeleteBucketMetricsConfiguration DeleteBucketOwnershipControls
        DeleteBucketPolicy DeleteBucketReplication DeleteBucketTagging DeleteBucketWebsite DeleteObject DeleteObjectTagging
        DeleteObjects DeletePublicAccessBlock PostObject PutBucketAbac PutBucketAccelerateConfiguration PutBucketAcl
        PutBucketAnalyticsConfiguration PutBucketCors PutBucketEncryption PutBucketIntelligentTieringConfiguration
        PutBucketInventoryConfiguration PutBucketLifecycleConfiguration PutBucketLogging PutBucketMetricsConfiguration
        PutBucketNotificationConfiguration PutBucketOwnershipControls PutBucketPolicy PutBucketReplication
        PutBucketRequestPayment PutBucketTagging PutBucketVersioning PutBucketWebsite PutObject PutObjectAcl
        PutObjectLockConfiguration PutObjectTagging PutPublicAccessBlock UploadPart UploadPartCopy""",
    "secretsmanager": """CancelRotateSecret CreateSecret DeleteResourcePolicy DeleteSecret PutResourcePolicy PutSecretValue
        RestoreSecret RotateSecret TagResource UntagResource UpdateSecret UpdateSecretVersionStage""",
    "sns": """AddPermission ConfirmSubscription CreateTopic DeleteTopic Publish PublishBatch RemovePermission
        SetSubscriptionAttributes SetTopicAttributes Subscribe TagResource Unsubscribe UntagResource""",
    "sqs": """AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue DeleteMessage
        DeleteMessageBatch DeleteQueue PurgeQueue ReceiveMessage RemovePermission SendMessage SendMessageBatch SetQueueAttributes
        StartMessageMoveTask TagQueue UntagQueue""",
    "ssm": """AddTagsToResource DeleteParameter DeleteParameters LabelParameterVersion PutParameter RemoveTagsFromResource
        ResumeSession UnlabelParameterVersion""",
    "sts": "AssumeRole",
}
# Members that name a role and pass none: the operation is about the role itself, or AWS checks it when an instance is launched.
# The body of PutBucketReplication has not arrived when permissions are checked; buckets are not replicated.
PASSES_NOT = re.compile(
    r"iam \w+ |sts AssumeRole |ec2 CreateLaunchTemplate(Version)? LaunchTemplateData\.|s3 PutBucketReplication "
    r"|batch RegisterJobDefinition .*seccompProfile\."
)
