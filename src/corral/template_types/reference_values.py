"""Facts about the resource types that a stack only stores (`stored_only.py`).

AWS's schemas do not contain these facts. They come from the user guide of CloudFormation.

A form is a text with placeholders: `{17x}` is 17 hexadecimal digits. The other character sets are `d` (digits), `a` (digits and
lower-case letters), `A` (digits and upper-case letters), `l` (lower-case letters) and `U` (upper-case letters). `{name}` is the
name of the resource, and `{time}` is the present time. `{number}` is the number of a version: each resource with the same name gets
another one. `{region}` and `{account}` are those of the caller. RELATED has the other placeholders.
"""

from __future__ import annotations

UUID = "{8x}-{4x}-{4x}-{4x}-{12x}"

# Type → the paths whose values `Ref` returns, if it does not return the primary identifier of the schema.
REFERENCES: dict[str, tuple[str, ...]] = {
    "AWS::ApiGateway::Authorizer": ("AuthorizerId",),
    "AWS::ApiGateway::Deployment": ("DeploymentId",),
    "AWS::ApiGateway::DocumentationPart": ("DocumentationPartId",),
    "AWS::ApiGateway::Model": ("Name",),
    "AWS::ApiGateway::RequestValidator": ("RequestValidatorId",),
    "AWS::ApiGateway::Resource": ("ResourceId",),
    "AWS::ApiGateway::Stage": ("StageName",),
    "AWS::ApiGatewayV2::Authorizer": ("AuthorizerId",),
    "AWS::ApiGatewayV2::Deployment": ("DeploymentId",),
    "AWS::ApiGatewayV2::Integration": ("IntegrationId",),
    "AWS::ApiGatewayV2::Model": ("ModelId",),
    "AWS::ApiGatewayV2::Route": ("RouteId",),
    "AWS::ApiGatewayV2::Stage": ("StageName",),
    "AWS::AppConfig::ConfigurationProfile": ("ConfigurationProfileId",),
    "AWS::AppConfig::Environment": ("EnvironmentId",),
    "AWS::Batch::JobDefinition": ("JobDefinitionArn",),
    "AWS::CloudFormation::Macro": ("Name",),
    "AWS::CodeBuild::Project": ("Name",),
    "AWS::Cognito::UserPoolClient": ("ClientId",),
    "AWS::Cognito::UserPoolGroup": ("GroupName",),
    "AWS::Cognito::UserPoolIdentityProvider": ("ProviderName",),
    "AWS::Cognito::UserPoolResourceServer": ("Identifier",),
    "AWS::Cognito::UserPoolUser": ("Username",),
    "AWS::DAX::Cluster": ("ClusterName",),
    "AWS::DocDB::DBCluster": ("DBClusterIdentifier",),
    "AWS::DocDB::DBInstance": ("DBInstanceIdentifier",),
    "AWS::EC2::VPCCidrBlock": ("Id",),
    "AWS::ElasticBeanstalk::ApplicationVersion": ("Id",),
    "AWS::ElasticBeanstalk::ConfigurationTemplate": ("TemplateName",),
    "AWS::Elasticsearch::Domain": ("DomainName",),
    "AWS::EMR::InstanceFleetConfig": ("InstanceFleetId",),
    "AWS::EMR::InstanceGroupConfig": ("InstanceGroupId",),
    "AWS::Events::Rule": ("RuleName",),
    "AWS::Glue::Connection": ("ConnectionInput/Name",),
    "AWS::Glue::DevEndpoint": ("EndpointName",),
    "AWS::Glue::Table": ("TableInput/Name",),
    "AWS::GuardDuty::Filter": ("Name",),
    "AWS::GuardDuty::IPSet": ("Id",),
    "AWS::GuardDuty::ThreatIntelSet": ("Id",),
    "AWS::IoT::Policy": ("PolicyName",),
    "AWS::IoTEvents::AlarmModel": ("AlarmModelName",),
    "AWS::Kendra::DataSource": ("Id",),
    "AWS::KinesisAnalytics::Application": ("ApplicationName",),
    "AWS::Lambda::Permission": ("Id",),
    "AWS::Logs::LogStream": ("LogStreamName",),
    "AWS::Logs::MetricFilter": ("FilterName",),
    "AWS::Logs::SubscriptionFilter": ("FilterName",),
    "AWS::QLDB::Ledger": ("Name",),
    "AWS::Route53::RecordSet": ("Name",),
    "AWS::SES::ReceiptRule": ("RuleName",),
    "AWS::ServiceDiscovery::Instance": ("InstanceId",),
    "AWS::SSM::MaintenanceWindowTarget": ("WindowTargetId",),
    "AWS::SSM::MaintenanceWindowTask": ("WindowTaskId",),
}

# Type → path → form. The schemas have no patterns for these ids.
FORMS: dict[str, dict[str, str]] = {
    "AWS::ApiGateway::ApiKey": {"APIKeyId": "{10a}"},
    "AWS::ApiGateway::Authorizer": {"AuthorizerId": "{6a}"},
    "AWS::ApiGateway::Deployment": {"DeploymentId": "{6a}"},
    "AWS::ApiGateway::Resource": {"ResourceId": "{6a}"},
    "AWS::ApiGateway::RestApi": {"RestApiId": "{10a}", "RootResourceId": "{10a}"},
    "AWS::ApiGateway::UsagePlan": {"Id": "{6a}"},
    "AWS::ApiGatewayV2::Api": {"ApiId": "{10a}", "ApiEndpoint": "https://{10a}.execute-api.{region}.amazonaws.com"},
    "AWS::ApiGatewayV2::Integration": {"IntegrationId": "{7a}"},
    "AWS::ApiGatewayV2::Route": {"RouteId": "{7a}"},
    "AWS::AppRunner::AutoScalingConfiguration": {
        "AutoScalingConfigurationArn": "arn:aws:apprunner:{region}:{account}:autoscalingconfiguration/{name}/{number}",
        "AutoScalingConfigurationRevision": "{number}",
    },
    "AWS::AppRunner::ObservabilityConfiguration": {
        "ObservabilityConfigurationArn": "arn:aws:apprunner:{region}:{account}:observabilityconfiguration/{name}/{number}",
        "ObservabilityConfigurationRevision": "{number}",
    },
    "AWS::CloudFront::Distribution": {"Id": "E{13A}", "DomainName": "d{13a}.cloudfront.net"},
    "AWS::CloudFront::CloudFrontOriginAccessIdentity": {"Id": "E{13A}", "S3CanonicalUserId": "{96x}"},
    "AWS::CloudFront::OriginAccessControl": {"Id": "E{13A}"},
    "AWS::Cognito::IdentityPool": {"Id": "{region}:" + UUID},
    "AWS::Cognito::UserPool": {
        "UserPoolId": "{region}_{9A}",
        "ProviderName": "cognito-idp.{region}.amazonaws.com/{region}_{9A}",
        "ProviderURL": "https://cognito-idp.{region}.amazonaws.com/{region}_{9A}",
        "Arn": "arn:aws:cognito-idp:{region}:{account}:userpool/{region}_{9A}",
    },
    "AWS::Cognito::UserPoolClient": {"ClientId": "{26a}", "ClientSecret": "{51a}"},
    "AWS::DMS::ReplicationInstance": {"Id": "arn:aws:dms:{region}:{account}:rep:{26A}"},
    "AWS::DMS::Endpoint": {"EndpointArn": "arn:aws:dms:{region}:{account}:endpoint:{26A}"},
    "AWS::DMS::ReplicationTask": {"ReplicationTaskArn": "arn:aws:dms:{region}:{account}:task:{26A}"},
    "AWS::DynamoDB::Table": {"StreamArn": "arn:aws:dynamodb:{region}:{account}:table/{name}/stream/2026-01-01T00:00:00.000"},
    "AWS::EC2::CapacityReservation": {"Id": "cr-{17x}"},
    "AWS::EC2::CarrierGateway": {"CarrierGatewayId": "cagw-{17x}"},
    "AWS::EC2::ClientVpnEndpoint": {"Id": "cvpn-endpoint-{17x}"},
    "AWS::EC2::CustomerGateway": {"CustomerGatewayId": "cgw-{17x}"},
    "AWS::EC2::EC2Fleet": {"FleetId": "fleet-{8x}-{4x}-{4x}-{4x}-{12x}"},
    "AWS::EC2::EgressOnlyInternetGateway": {"Id": "eigw-{17x}"},
    "AWS::EC2::FlowLog": {"Id": "fl-{17x}"},
    "AWS::EC2::Host": {"HostId": "h-{17x}"},
    "AWS::EC2::InstanceConnectEndpoint": {"Id": "eice-{17x}"},
    "AWS::EC2::IPAM": {"IpamId": "ipam-{17x}"},
    "AWS::EC2::IPAMPool": {"IpamPoolId": "ipam-pool-{17x}"},
    "AWS::EC2::NetworkInterface": {"Id": "eni-{17x}"},
    "AWS::EC2::PlacementGroup": {"GroupName": "{name}", "GroupId": "pg-{17x}"},
    "AWS::EC2::PrefixList": {"PrefixListId": "pl-{17x}"},
    "AWS::EC2::SpotFleet": {"Id": "sfr-" + UUID},
    "AWS::EC2::SubnetCidrBlock": {"Id": "subnet-cidr-assoc-{17x}"},
    "AWS::EC2::TrafficMirrorFilter": {"Id": "tmf-{17x}"},
    "AWS::EC2::TrafficMirrorSession": {"Id": "tms-{17x}"},
    "AWS::EC2::TrafficMirrorTarget": {"Id": "tmt-{17x}"},
    "AWS::EC2::TransitGateway": {"Id": "tgw-{17x}"},
    "AWS::EC2::TransitGatewayAttachment": {"Id": "tgw-attach-{17x}"},
    "AWS::EC2::TransitGatewayRouteTable": {"TransitGatewayRouteTableId": "tgw-rtb-{17x}"},
    "AWS::EC2::TransitGatewayVpcAttachment": {"Id": "tgw-attach-{17x}"},
    "AWS::EC2::Volume": {"VolumeId": "vol-{17x}"},
    "AWS::EC2::VPCCidrBlock": {"Id": "vpc-cidr-assoc-{17x}"},
    "AWS::EC2::VPCEndpointService": {"ServiceId": "vpce-svc-{17x}"},
    "AWS::EC2::VPCPeeringConnection": {"Id": "pcx-{17x}"},
    "AWS::EC2::VPNConnection": {"VpnConnectionId": "vpn-{17x}"},
    "AWS::EC2::VPNGateway": {"VPNGatewayId": "vgw-{17x}"},
    "AWS::EFS::AccessPoint": {"AccessPointId": "fsap-{17x}"},
    "AWS::EFS::MountTarget": {"Id": "fsmt-{17x}"},
    "AWS::EKS::Cluster": {"Endpoint": "https://{32A}.gr7.{region}.eks.amazonaws.com"},
    "AWS::EKS::Nodegroup": {"Id": "{cluster}/{name}"},
    "AWS::ElasticBeanstalk::ApplicationVersion": {"Id": "{name}"},
    "AWS::ElasticLoadBalancingV2::Listener": {"ListenerArn": "{loadbalancer}/{16x}"},
    "AWS::ElasticLoadBalancingV2::ListenerRule": {"RuleArn": "{listener}/{16x}"},
    "AWS::ElasticLoadBalancingV2::LoadBalancer": {
        "LoadBalancerArn": "arn:aws:elasticloadbalancing:{region}:{account}:loadbalancer/{balancer}/{name}/{16x}",
        "LoadBalancerFullName": "{balancer}/{name}/{16x}",
        "LoadBalancerName": "{name}",
        "DNSName": "{name}-{10d}.{region}.elb.amazonaws.com",
        "CanonicalHostedZoneID": "Z{13A}",
    },
    "AWS::ElasticLoadBalancingV2::TargetGroup": {
        "TargetGroupArn": "arn:aws:elasticloadbalancing:{region}:{account}:targetgroup/{name}/{16x}",
        "TargetGroupFullName": "targetgroup/{name}/{16x}",
        "TargetGroupName": "{name}",
    },
    "AWS::EMR::Cluster": {"Id": "j-{13A}"},
    "AWS::EMR::Step": {"Id": "s-{13A}"},
    "AWS::FSx::FileSystem": {"Id": "fs-{17x}", "DNSName": "fs-{17x}.fsx.{region}.amazonaws.com", "LustreMountName": "{8a}"},
    "AWS::GuardDuty::Detector": {"Id": "{32x}"},
    "AWS::IAM::OIDCProvider": {"Arn": "arn:aws:iam::{account}:oidc-provider/{17x}"},
    "AWS::KMS::Key": {"KeyId": UUID, "Arn": "arn:aws:kms:{region}:{account}:key/" + UUID},
    "AWS::KMS::ReplicaKey": {"KeyId": "mrk-{32x}", "Arn": "arn:aws:kms:{region}:{account}:key/mrk-{32x}"},
    "AWS::Lambda::LayerVersion": {"LayerVersionArn": "arn:aws:lambda:{region}:{account}:layer:{layer}:{number}"},
    "AWS::Lambda::Permission": {"Id": "{name}"},
    "AWS::Lambda::Url": {"FunctionUrl": "https://{32a}.lambda-url.{region}.on.aws/"},
    "AWS::Lambda::Version": {
        "FunctionArn": "arn:aws:lambda:{region}:{account}:function:{function}:{number}",
        "Version": "{number}",
    },
    "AWS::Lambda::Alias": {"AliasArn": "arn:aws:lambda:{region}:{account}:function:{function}:{name}"},
    "AWS::OpsWorks::Stack": {"Id": UUID},
    "AWS::Route53::HealthCheck": {"HealthCheckId": UUID},
    "AWS::Route53::HostedZone": {"Id": "Z{13A}"},
    "AWS::ServiceDiscovery::HttpNamespace": {"Id": "ns-{16a}"},
    "AWS::ServiceDiscovery::PrivateDnsNamespace": {"Id": "ns-{16a}", "HostedZoneId": "Z{13A}"},
    "AWS::ServiceDiscovery::PublicDnsNamespace": {"Id": "ns-{16a}", "HostedZoneId": "Z{13A}"},
    "AWS::ServiceDiscovery::Service": {"Id": "srv-{16a}"},
    "AWS::StepFunctions::StateMachine": {"Name": "{name}"},
    "AWS::StepFunctions::StateMachineVersion": {"Arn": "{machine}:{number}"},
    "AWS::WAFv2::IPSet": {"Id": UUID},
    "AWS::WAFv2::WebACL": {"Id": UUID},
}

# Placeholder of a form → the property with its value, and the value if the template does not set the property. If a property has an
# ARN, only the last part of the ARN is used, except for `loadbalancer` and `listener`.
RELATED = {
    "balancer": ("Type", "app"),
    "cluster": ("ClusterName", "cluster"),
    "function": ("FunctionName", "function"),
    "loadbalancer": ("LoadBalancerArn", "arn:aws:elasticloadbalancing:{region}:{account}:loadbalancer/app/loadbalancer/{16x}"),
    "layer": ("LayerName", "{name}"),
    "machine": ("StateMachineArn", "arn:aws:states:{region}:{account}:stateMachine:machine"),
    "version": ("Version", "1.0.0"),
    "listener": ("ListenerArn", "arn:aws:elasticloadbalancing:{region}:{account}:listener/app/loadbalancer/{16x}"),
}

# The placeholders of RELATED that are a part of the identity. Two resources can have the same name if these differ.
SCOPES = ("cluster", "function", "version")

# Type of a load balancer → the word in its ARN.
LOAD_BALANCERS = {"application": "app", "network": "net", "gateway": "gwy"}

# Type → the resource part of its ARN. Other types have TYPE-IN-KEBAB-CASE/NAME.
ARN_RESOURCES = {
    "AWS::ApiGatewayV2::Api": "/apis/{10a}",
    "AWS::AppSync::GraphQLApi": "apis/{26a}",
    "AWS::Backup::BackupPlan": "backup-plan:" + UUID,
    "AWS::Backup::BackupVault": "backup-vault:{name}",
    "AWS::CertificateManager::Certificate": "certificate/" + UUID,
    "AWS::CodePipeline::Pipeline": "{name}",
    "AWS::EC2::TransitGateway": "transit-gateway/tgw-{17x}",
    "AWS::EFS::FileSystem": "file-system/fs-{17x}",
    "AWS::EFS::AccessPoint": "access-point/fsap-{17x}",
    "AWS::ElastiCache::ReplicationGroup": "replicationgroup:{name}",
    "AWS::ImageBuilder::Component": "component/{name}/{version}/1",
    "AWS::ImageBuilder::ContainerRecipe": "container-recipe/{name}/{version}",
    "AWS::ImageBuilder::ImageRecipe": "image-recipe/{name}/{version}",
    "AWS::ImageBuilder::Workflow": "workflow/build/{name}/{version}/1",
    "AWS::KinesisFirehose::DeliveryStream": "deliverystream/{name}",
    "AWS::Lambda::EventSourceMapping": "event-source-mapping:" + UUID,
    "AWS::Lambda::Function": "function:{name}",
    "AWS::MSK::Cluster": "cluster/{name}/" + UUID + "-1",
    "AWS::OpenSearchService::Domain": "domain/{name}",
    "AWS::RDS::DBCluster": "cluster:{name}",
    "AWS::RDS::DBInstance": "db:{name}",
    "AWS::RDS::DBSubnetGroup": "subgrp:{name}",
    "AWS::SQS::Queue": "{name}",
    "AWS::StepFunctions::Activity": "activity:{name}",
    "AWS::StepFunctions::StateMachine": "stateMachine:{name}",
    "AWS::WAFv2::WebACL": "regional/webacl/{name}/" + UUID,
}

# End of an attribute's name in lower case → the form of its values.
ATTRIBUTE_VALUES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("hostedzoneid", "hostedzonenameid"), "Z{13A}"),
    (("accountid", "ownerid", "account", "owneraccount"), "{account}"),
    (("regionname", "region"), "{region}"),
    (("availabilityzone",), "{region}a"),
    (("vpcid",), "vpc-{17x}"),
    (("subnetid",), "subnet-{17x}"),
    (("securitygroupid",), "sg-{17x}"),
    (("networkinterfaceid",), "eni-{17x}"),
    (("ipv6address",), "2001:db8::1"),
    (("ipaddress", "privateip", "publicip"), "198.51.100.1"),
    (("ipv4network", "cidr", "cidrblock"), "198.51.100.0/24"),
    (("nameserver",), "ns-1.awsdns-00.com"),
    (("status", "state"), "ACTIVE"),
    (("version", "versionid", "revision"), "1"),
    (
        ("createdat", "updatedat", "createdtime", "creationtime", "updatedtime", "creationdate", "lastmodified", "timestamp"),
        "{time}",
    ),
)
# Service or database engine in lower case → the default port.
PORTS = {
    "docdb": 27017,
    "elasticache": 6379,
    "memcached": 11211,
    "memorydb": 6379,
    "neptune": 8182,
    "postgres": 5432,
    "postgresql": 5432,
    "rds": 3306,
    "redshift": 5439,
}
# Services whose ARNs have no region.
GLOBAL_SERVICES = frozenset(
    {"cloudfront", "iam", "organizations", "route53", "globalaccelerator", "networkmanager", "budgets", "ce"}
)
# Services that convert names to lower case.
LOWER_CASE_NAMES = frozenset(
    {"DAX", "DocDB", "ElastiCache", "Elasticsearch", "MemoryDB", "Neptune", "OpenSearchService", "RDS", "Redshift", "S3"}
)
