"""Cases of Lambda."""

from __future__ import annotations

from stacks.resource_cases import OTHER_TAGS, TAGS, TRUST, Case

FUNCTION = "AWS::Lambda::Function"
POLLING = "arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole"
ROLE = "arn:aws:iam::123456789012:role/r"

CASES: dict[str, Case] = {
    FUNCTION: Case(
        {
            "FunctionName": "function",
            "Runtime": "python3.12",
            "Handler": "index.handler",
            "Role": ROLE,
            "Code": {"ZipFile": "def handler(event, context): pass"},
            "Description": "first",
            "Timeout": 10,
            "Environment": {"Variables": {"MODE": "1"}},
            "VpcConfig": {"SubnetIds": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
            "ReservedConcurrentExecutions": 1,
            "Tags": [{"Key": "a", "Value": "b"}],
        },
        changed={
            "Code": {"ZipFile": "def handler(event, context): return 1"},
            "Description": None,
            "Timeout": None,
            "MemorySize": 256,
            "VpcConfig": None,
            "ReservedConcurrentExecutions": 2,
            "Tags": [{"Key": "c", "Value": "d"}],
        },
        replacing={"FunctionName": "other"},
        starts="function",
        shown=("lambda:GetFunctionConfiguration", {"FunctionName": "function"}, "'Timeout': 3, 'MemorySize': 256"),
    ),
    "AWS::Lambda::EventSourceMapping": Case(
        {
            "EventSourceArn": {"GetAtt": ["queue", "Arn"]},
            "FunctionName": {"Ref": "function"},
            "BatchSize": 5,
            "ScalingConfig": {"MaximumConcurrency": 2},
            **TAGS,
        },
        needs={
            "role": ("AWS::IAM::Role", {"RoleName": "r", "AssumeRolePolicyDocument": TRUST, "ManagedPolicyArns": [POLLING]}),
            "function": FUNCTION,
            "queue": ("AWS::SQS::Queue", {"QueueName": "queue"}),
            "fifo": ("AWS::SQS::Queue", {"QueueName": "queue.fifo", "FifoQueue": True}),
        },
        changed={"BatchSize": None, "Enabled": False, "ScalingConfig": None, **OTHER_TAGS},
        replacing={"EventSourceArn": {"GetAtt": ["fifo", "Arn"]}},
        shown=("lambda:ListEventSourceMappings", {"FunctionName": "function"}, "'BatchSize': 10"),
    ),
    "AWS::Lambda::Permission": Case(
        {
            "FunctionName": {"GetAtt": ["function", "Arn"]},
            "Action": "lambda:InvokeFunction",
            "Principal": "sns.amazonaws.com",
            "SourceArn": "arn:aws:sns:us-east-1:123456789012:topic",
        },
        needs={"function": FUNCTION},
        replacing={"SourceArn": "arn:aws:sns:us-east-1:123456789012:other"},
        starts="stack-resource-",
        shown=("lambda:GetPolicy", {"FunctionName": "function"}, "arn:aws:sns:us-east-1:123456789012:topic"),
    ),
}
