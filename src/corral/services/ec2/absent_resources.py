"""Types of resources that no operation here creates. Clients describe them before they change or delete others."""

from __future__ import annotations

from corral.operations.stored_resources import ResourceType
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2

VPC_PEERING_CONNECTION = ResourceType(
    EC2,
    "vpc-peering-connection",
    id="VpcPeeringConnectionId",
    one="VpcPeeringConnection",
    many="VpcPeeringConnections",
    ids="VpcPeeringConnectionIds",
    selects=filtered(
        {
            "vpc-peering-connection-id": "VpcPeeringConnectionId", "status-code": "Status.Code", "status-message": "Status.Message",
            "expiration-time": "ExpirationTime", "accepter-vpc-info.cidr-block": "AccepterVpcInfo.CidrBlock",
            "accepter-vpc-info.owner-id": "AccepterVpcInfo.OwnerId", "accepter-vpc-info.vpc-id": "AccepterVpcInfo.VpcId",
            "requester-vpc-info.cidr-block": "RequesterVpcInfo.CidrBlock", "requester-vpc-info.vpc-id": "RequesterVpcInfo.VpcId",
            "requester-vpc-info.owner-id": "RequesterVpcInfo.OwnerId",
        }
    ),
    list="DescribeVpcPeeringConnections",
)  # fmt: skip
FLOW_LOG = ResourceType(
    EC2,
    "flow-log",
    id="FlowLogId",
    one="FlowLog",
    many="FlowLogs",
    ids="FlowLogIds",
    selects=filtered(
        {
            "flow-log-id": "FlowLogId", "resource-id": "ResourceId", "log-group-name": "LogGroupName",
            "log-destination-type": "LogDestinationType", "traffic-type": "TrafficType", "deliver-log-status": "DeliverLogsStatus",
        },
        member="Filter",
    ),
    list="DescribeFlowLogs",
)  # fmt: skip
VOLUME = ResourceType(  # the disks of instances are those of this machine
    EC2,
    "volume",
    id="VolumeId",
    one="Volume",
    many="Volumes",
    ids="VolumeIds",
    selects=filtered(
        {
            "volume-id": "VolumeId", "status": "State", "size": "Size", "volume-type": "VolumeType", "encrypted": "Encrypted",
            "availability-zone": "AvailabilityZone", "create-time": "CreateTime", "snapshot-id": "SnapshotId",
            "multi-attach-enabled": "MultiAttachEnabled", "attachment.instance-id": "Attachments[].InstanceId",
            "attachment.status": "Attachments[].State", "attachment.attach-time": "Attachments[].AttachTime",
            "attachment.device": "Attachments[].Device", "attachment.delete-on-termination": "Attachments[].DeleteOnTermination",
        }
    ),
    list="DescribeVolumes",
)  # fmt: skip
