// A job queue with a managed compute environment and a job definition, made of CDK's own constructs for AWS Batch.
"use strict";

const cdk = require("aws-cdk-lib");
const batch = require("aws-cdk-lib/aws-batch");
const ec2 = require("aws-cdk-lib/aws-ec2");
const ecs = require("aws-cdk-lib/aws-ecs");

const app = new cdk.App();
const stack = new cdk.Stack(app, "Jobs", {
  env: { account: process.env.CDK_DEFAULT_ACCOUNT, region: process.env.CDK_DEFAULT_REGION },
});
const type = new cdk.CfnParameter(stack, "Type", { default: "g5.xlarge" });
const environment = new batch.ManagedEc2EcsComputeEnvironment(stack, "Environment", {
  vpc: ec2.Vpc.fromLookup(stack, "Vpc", { isDefault: true }),
  vpcSubnets: { subnetType: ec2.SubnetType.PUBLIC },
  instanceTypes: [new ec2.InstanceType("g5.xlarge")],
  useOptimalInstanceClasses: false,
  maxvCpus: 16,
});
environment.node.defaultChild.addPropertyOverride("ComputeResources.InstanceTypes", [type.valueAsString]);
const queue = new batch.JobQueue(stack, "Queue", { computeEnvironments: [{ computeEnvironment: environment, order: 1 }] });
const definition = new batch.EcsJobDefinition(stack, "Definition", {
  container: new batch.EcsEc2ContainerDefinition(stack, "Container", {
    image: ecs.ContainerImage.fromRegistry("corral/host"),
    command: ["sh", "-c", "echo gpu=$CUDA_VISIBLE_DEVICES"],
    cpu: 1,
    gpu: 1,
    memory: cdk.Size.mebibytes(64),
  }),
  retryAttempts: 2,
});
new cdk.CfnOutput(stack, "QueueArn", { value: queue.jobQueueArn });
new cdk.CfnOutput(stack, "DefinitionArn", { value: definition.jobDefinitionArn });
new cdk.CfnOutput(stack, "EnvironmentArn", { value: environment.computeEnvironmentArn });
