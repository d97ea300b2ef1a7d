"""Service-linked roles: the roles that AWS services use. IAM knows their names and policies, and callers cannot change them.

No service of Corral needs such a role. So a role can always be deleted, and its deletion is complete at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from msgspec import Struct

from corral.access.aws_policies import AWS_POLICY
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Params, create, find
from corral.services.iam import errors
from corral.services.iam.roles import ROLE, created_role
from corral.services.iam.style import SERVICE_PATH
from corral.store import Store

DOMAIN = ".amazonaws.com"
DELETIONS = "iam/DeleteServiceLinkedRole"  # the scope of deletion tasks in the store
DELETIONS_KEPT_S = 24 * 3600.0

# Service, name of its role without "AWSServiceRoleFor", its policy, and whether roles can have a suffix.
TABLE = """\
accountdiscovery.ssm AmazonSSM_AccountDiscovery AWSSystemsManagerAccountDiscoveryServicePolicy
acm CertificateManager CertificateManagerServiceRolePolicy
access-analyzer AccessAnalyzer AccessAnalyzerServiceRolePolicy
appmesh AppMesh AWSAppMeshServiceRolePolicy
autoscaling-plans AutoScalingPlans_EC2AutoScaling AWSAutoScalingPlansEC2AutoScalingPolicy
autoscaling AutoScaling AutoScalingServiceRolePolicy suffix
backup Backup AWSBackupServiceLinkedRolePolicyForBackup
batch Batch BatchServiceRolePolicy
cassandra.application-autoscaling ApplicationAutoScaling_CassandraTable AWSApplicationAutoscalingCassandraTablePolicy
cks.kms KeyManagementServiceCustomKeyStores AWSKeyManagementServiceCustomKeyStoresServiceRolePolicy
cloudtrail CloudTrail CloudTrailServiceRolePolicy
codestar-notifications CodeStarNotifications AWSCodeStarNotificationsServiceRolePolicy
compute-optimizer ComputeOptimizer ComputeOptimizerServiceRolePolicy
config Config AWSConfigServiceRolePolicy
connect AmazonConnect AmazonConnectServiceLinkedRolePolicy suffix
custom-resource.application-autoscaling ApplicationAutoScaling_CustomResource AWSApplicationAutoScalingCustomResourcePolicy
dms-fleet-advisor DMSFleetAdvisor AWSDMSFleetAdvisorServiceRolePolicy
dms DMSServerless AWSDMSServerlessServiceRolePolicy
docdb-elastic DocDB-Elastic AmazonDocDB-ElasticServiceRolePolicy
dynamodb.application-autoscaling ApplicationAutoScaling_DynamoDBTable AWSApplicationAutoscalingDynamoDBTablePolicy
ec2-instance-connect Ec2InstanceConnect Ec2InstanceConnectEndpoint
ec2.application-autoscaling ApplicationAutoScaling_EC2SpotFleetRequest AWSApplicationAutoscalingEC2SpotFleetRequestPolicy
ec2fleet EC2Fleet AWSEC2FleetServiceRolePolicy
ec2scheduled EC2ScheduledInstances AWSServiceRoleForEC2ScheduledInstances
ecr ECRTemplate ECRTemplateServiceRolePolicy
ecs.application-autoscaling ApplicationAutoScaling_ECSService AWSApplicationAutoscalingECSServicePolicy
ecs ECS AmazonECSServiceRolePolicy
eks-connector AmazonEKSConnector AmazonEKSConnectorServiceRolePolicy
eks-fargate AmazonEKSForFargate AmazonEKSForFargateServiceRolePolicy
eks-nodegroup AmazonEKSNodegroup AWSServiceRoleForAmazonEKSNodegroup
eks AmazonEKS AmazonEKSServiceRolePolicy
elasticache ElastiCache ElastiCacheServiceRolePolicy
elasticbeanstalk ElasticBeanstalk AWSElasticBeanstalkServiceRolePolicy
elasticfilesystem AmazonElasticFileSystem AmazonElasticFileSystemServiceRolePolicy
elasticloadbalancing ElasticLoadBalancing AWSElasticLoadBalancingServiceRolePolicy
elasticmapreduce EMRCleanup AmazonEMRCleanupPolicy
email.cognito-idp AmazonCognitoIdpEmailService AmazonCognitoIdpEmailServiceRolePolicy
emr-containers AmazonEMRContainers AmazonEMRContainersServiceRolePolicy
emrwal EMRWAL EMRDescribeClusterPolicyForEMRWAL
es AmazonElasticsearchService AmazonElasticsearchServiceRolePolicy
fis FIS AmazonFISServiceRolePolicy
fsx AmazonFSx AmazonFSxServiceRolePolicy
globalaccelerator GlobalAccelerator AWSGlobalAcceleratorSLRPolicy
grafana AmazonGrafana AmazonGrafanaServiceLinkedRolePolicy
guardduty AmazonGuardDuty AmazonGuardDutyServiceRolePolicy
imagebuilder ImageBuilder AWSServiceRoleForImageBuilder
inspector2 AmazonInspector2 AmazonInspector2ServiceRolePolicy
iotmanagedintegrations IoTManagedIntegrations AWSIoTManagedIntegrationsRolePolicy
kafka.application-autoscaling ApplicationAutoScaling_KafkaCluster AWSApplicationAutoscalingKafkaClusterPolicy
kafka Kafka KafkaServiceRolePolicy
kafkaconnect KafkaConnect KafkaConnectServiceRolePolicy
lakeformation LakeFormationDataAccess LakeFormationDataAccessServiceRolePolicy
lambda.application-autoscaling ApplicationAutoScaling_LambdaConcurrency AWSApplicationAutoscalingLambdaConcurrencyPolicy
lex LexBots AmazonLexBotPolicy
lexv2 LexV2Bots AmazonLexV2BotPolicy suffix
lightsail Lightsail LightsailExportAccess
m2 AWSM2 AWSM2ServicePolicy
memorydb MemoryDB MemoryDBServiceRolePolicy
mq AmazonMQ AmazonMQServiceRolePolicy
mrk.kms KeyManagementServiceMultiRegionKeys AWSKeyManagementServiceMultiRegionKeysServiceRolePolicy
network-firewall NetworkFirewall AWSNetworkFirewallServiceRolePolicy
notifications AwsUserNotifications AWSUserNotificationsServiceLinkedRolePolicy
observability.aoss AmazonOpenSearchServerless AmazonOpenSearchServerlessServiceRolePolicy
opensearchservice AmazonOpenSearchService AmazonOpenSearchServiceRolePolicy
ops.apigateway APIGateway APIGatewayServiceRolePolicy
ops.emr-serverless AmazonEMRServerless AmazonEMRServerlessServiceRolePolicy
opsdatasync.ssm SystemsManagerOpsDataSync AWSSystemsManagerOpsDataSyncServiceRolePolicy
opsinsights.ssm AmazonSSM_OpsInsights AWSSSMOpsInsightsServiceRolePolicy
organizations Organizations AWSOrganizationsServiceTrustPolicy
pullthroughcache.ecr ECRPullThroughCache AWSECRPullThroughCache_ServiceRolePolicy
ram ResourceAccessManager AWSResourceAccessManagerServiceRolePolicy
rds.application-autoscaling ApplicationAutoScaling_RDSCluster AWSApplicationAutoscalingRDSClusterPolicy
rds RDS AmazonRDSServiceRolePolicy
redshift Redshift AmazonRedshiftServiceLinkedRolePolicy
replication.cassandra KeyspacesReplication KeyspacesReplicationServiceRolePolicy
replication.ecr ECRReplication ECRReplicationServiceRolePolicy
repository.sync.codeconnections GitSync AWSGitSyncServiceRolePolicy
resource-explorer-2 ResourceExplorer AWSResourceExplorerServiceRolePolicy
rolesanywhere RolesAnywhere AWSRolesAnywhereServicePolicy
s3-outposts S3OnOutposts AWSS3OnOutpostsServiceRolePolicy
sagemaker.application-autoscaling ApplicationAutoScaling_SageMakerEndpoint AWSApplicationAutoscalingSageMakerEndpointPolicy
securityhub SecurityHub AWSSecurityHubServiceRolePolicy
servicequotas ServiceQuotas ServiceQuotasServiceRolePolicy
ses AmazonSES AmazonSESServiceRolePolicy
shield AWSShield AWSShieldServiceRolePolicy
spot EC2Spot AWSEC2SpotServiceRolePolicy
spotfleet EC2SpotFleet AWSEC2SpotFleetServiceRolePolicy
ssm-incidents IncidentManager AWSIncidentManagerServiceRolePolicy
ssm-quicksetup SSMQuickSetup SSMQuickSetupRolePolicy
ssm AmazonSSM AmazonSSMServiceRolePolicy
sso SSO AWSSSOServiceRolePolicy
support Support AWSSupportServiceRolePolicy
transitgateway VPCTransitGateway AWSVPCTransitGatewayServiceRolePolicy
trustedadvisor TrustedAdvisor AWSTrustedAdvisorServiceRolePolicy
vpcorigin.cloudfront CloudFrontVPCOrigin AWSCloudFrontVPCOriginServiceRolePolicy
waf WAFLogging WAFLoggingServiceRolePolicy
wafv2 WAFV2Logging WAFV2LoggingServiceRolePolicy
"""


class ServiceRole(Struct, frozen=True):
    name: str
    policy_arn: str
    takes_suffix: bool


def _read(line: str) -> tuple[str, ServiceRole]:
    service, name, policy, *suffix = line.split()
    return service + DOMAIN, ServiceRole(f"AWSServiceRoleFor{name}", f"{AWS_POLICY}{SERVICE_PATH[1:]}{policy}", bool(suffix))


SERVICE_ROLES = dict(map(_read, TABLE.splitlines()))


def service_linked_role_name(params: Mapping[str, Any]) -> str:
    """Return the name of the role that a request creates. Raise IAM's error if the service has no such role."""
    service, suffix = params["AWSServiceName"], params.get("CustomSuffix")
    known = SERVICE_ROLES.get(service)
    if known is None:
        raise errors.AccessDenied(f"Cannot find Service Linked Role template for {service}")
    if suffix and not known.takes_suffix:
        raise errors.InvalidInputException(f"Custom suffix is not allowed for {service}")
    return f"{known.name}_{suffix}" if suffix else known.name


def create_service_linked_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name, service = service_linked_role_name(params), params["AWSServiceName"]
    trust = {"Action": ["sts:AssumeRole"], "Effect": "Allow", "Principal": {"Service": [service]}}
    wanted = {
        "RoleName": name,
        "Path": f"{SERVICE_PATH}{service}/",
        "AssumeRolePolicyDocument": orjson.dumps({"Version": "2012-10-17", "Statement": [trust]}).decode(),
        **({"Description": params["Description"]} if "Description" in params else {}),
        "_attached": [SERVICE_ROLES[service].policy_arn],
    }
    try:
        role = create(tx, caller, ROLE, wanted)
    except errors.EntityAlreadyExistsException:
        raise errors.InvalidInputException(
            f"Service role name {name} has been taken in this account, please try a different suffix."
        ) from None
    return {"Role": created_role(tx, caller, role)}


def delete_service_linked_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    if not role["Path"].startswith(SERVICE_PATH):
        raise errors.InvalidInputException(f"The role {role['RoleName']} is not a service-linked role: use DeleteRole.")
    tx.store.stored.drop("iam", ROLE.name, "", role["RoleName"])
    ROLE.deleted(tx, caller, role)
    digits = tx.ids.hex32()
    task = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    task_id = f"task{role['Path']}{role['RoleName']}/{task}"
    tx.store.tokens.put(DELETIONS, task_id, "", "SUCCEEDED", tx.now_s + DELETIONS_KEPT_S)
    return {"DeletionTaskId": task_id}


def get_service_linked_role_deletion_status(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = tx.store.tokens.get(DELETIONS, params["DeletionTaskId"], tx.now_s)
    if found is None:
        raise errors.NoSuchEntityException(f"The deletion task with id {params['DeletionTaskId']} cannot be found.")
    return {"Status": found[1]}
