// A small app that uses what CDK reads from an account: look-ups, and assets in the bucket of the bootstrap stack.
"use strict";

const path = require("path");
const cdk = require("aws-cdk-lib");
const ec2 = require("aws-cdk-lib/aws-ec2");
const ecs = require("aws-cdk-lib/aws-ecs");
const kms = require("aws-cdk-lib/aws-kms");
const assets = require("aws-cdk-lib/aws-s3-assets");
const ssm = require("aws-cdk-lib/aws-ssm");

const IMAGE = "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id";

const app = new cdk.App();
const stack = new cdk.Stack(app, "Lookups", {
  env: { account: process.env.CDK_DEFAULT_ACCOUNT, region: process.env.CDK_DEFAULT_REGION },
});
const vpc = ec2.Vpc.fromLookup(stack, "Vpc", { isDefault: true });
const asset = new assets.Asset(stack, "Folder", { path: path.join(__dirname, "folder") });
const large = new cdk.CfnParameter(stack, "Large", { default: "no" });
const isLarge = new cdk.CfnCondition(stack, "IsLarge", { expression: cdk.Fn.conditionEquals(large, "yes") });
const key = new kms.Key(stack, "Key", { removalPolicy: cdk.RemovalPolicy.DESTROY });
key.node.defaultChild.cfnOptions.condition = isLarge;
const size = app.node.tryGetContext("size") ?? "small";
new ssm.StringParameter(stack, "Size", { parameterName: "/lookups/size", stringValue: size });
const task = new ecs.Ec2TaskDefinition(stack, "Task"); // CDK gives it a family
task.addContainer("main", { image: ecs.ContainerImage.fromRegistry("corral/host"), command: ["echo", size], memoryLimitMiB: 64 });

const outputs = {
  Vpc: vpc.vpcId,
  Subnets: vpc.publicSubnets.map((each) => each.subnetId).join(","),
  Zones: stack.availabilityZones.join(","),
  FirstZone: cdk.Fn.select(0, cdk.Fn.getAzs()),
  Image: ssm.StringParameter.valueFromLookup(stack, IMAGE),
  Asset: asset.s3ObjectUrl,
  Task: task.taskDefinitionArn,
};
for (const [name, value] of Object.entries(outputs)) {
  new cdk.CfnOutput(stack, `${name}Output`, { value });
}
