// A service whose number of tasks follows the load of their GPUs, on a group of instances that follows the number of tasks.
"use strict";

const cdk = require("aws-cdk-lib");
const applicationautoscaling = require("aws-cdk-lib/aws-applicationautoscaling");
const autoscaling = require("aws-cdk-lib/aws-autoscaling");
const cloudwatch = require("aws-cdk-lib/aws-cloudwatch");
const ec2 = require("aws-cdk-lib/aws-ec2");
const ecr = require("aws-cdk-lib/aws-ecr");
const ecs = require("aws-cdk-lib/aws-ecs");
const iam = require("aws-cdk-lib/aws-iam");
const logs = require("aws-cdk-lib/aws-logs");

const CLUSTER = "ecs-gpu-demo";
const SERVICE = "gpu-service";
const TASKS = { minCapacity: 1, maxCapacity: 3 };
const TARGET_PERCENT = 75;

class GpuService extends cdk.Stack {
  constructor(scope, id, props) {
    super(scope, id, props);
    const cooldown = cdk.Duration.seconds(Number(this.node.tryGetContext("cooldown") ?? 60));
    const withCollector = this.node.tryGetContext("collector") === "true";

    const vpc = new ec2.Vpc(this, "Vpc", {
      maxAzs: 2,
      natGateways: 0,
      subnetConfiguration: [{ name: "Public", subnetType: ec2.SubnetType.PUBLIC }],
    });
    const cluster = new ecs.Cluster(this, "Cluster", {
      clusterName: CLUSTER,
      containerInsightsV2: ecs.ContainerInsights.ENABLED,
      vpc,
    });
    const repository = new ecr.Repository(this, "Repository", {
      emptyOnDelete: true,
      removalPolicy: cdk.RemovalPolicy.DESTROY,
    });
    const provider = this.addInstances(cluster);
    const service = this.addService(cluster, provider, repository, withCollector);
    this.followGpuLoad(service, cooldown);

    new cdk.CfnOutput(this, "RepositoryUri", { value: repository.repositoryUri });
    new cdk.CfnOutput(this, "ServiceName", { value: service.serviceName });
  }

  addInstances(cluster) {
    const group = new autoscaling.AutoScalingGroup(this, "Instances", {
      vpc: cluster.vpc,
      associatePublicIpAddress: true,
      instanceType: new ec2.InstanceType("g5.xlarge"),
      machineImage: ecs.EcsOptimizedImage.amazonLinux2023(ecs.AmiHardwareType.GPU),
      requireImdsv2: true,
      minCapacity: TASKS.minCapacity,
      maxCapacity: TASKS.maxCapacity,
    });
    const provider = new ecs.AsgCapacityProvider(this, "Capacity", {
      autoScalingGroup: group,
      enableManagedScaling: true,
      targetCapacityPercent: 100,
      // Without this protection, CDK adds a lifecycle hook and a function that drains an instance before it ends.
      enableManagedTerminationProtection: false,
    });
    cluster.addAsgCapacityProvider(provider);
    return provider;
  }

  addService(cluster, provider, repository, withCollector) {
    // One task fills an instance, so its containers can share the network of the instance.
    const task = new ecs.Ec2TaskDefinition(this, "Task", { networkMode: ecs.NetworkMode.HOST });
    task.addContainer("gpu", {
      image: ecs.ContainerImage.fromEcrRepository(repository),
      command: ["sleep", "infinity"],
      gpuCount: 1,
      memoryReservationMiB: 2048,
      logging: ecs.LogDrivers.awsLogs({ streamPrefix: "gpu", logGroup: this.addLogGroup("Log") }),
    });
    if (withCollector) {
      this.addCollector(task);
    }
    const service = new ecs.Ec2Service(this, "Service", {
      cluster,
      serviceName: SERVICE,
      taskDefinition: task,
      // No desiredCount: each deployment of the stack would reset the number of tasks to it.
      minHealthyPercent: 50,
      maxHealthyPercent: 200,
      enableExecuteCommand: true,
      capacityProviderStrategies: [{ capacityProvider: provider.capacityProviderName, weight: 1 }],
    });
    cdk.Annotations.of(service).acknowledgeWarning(
      "@aws-cdk/aws-ecs:shouldUseCircuitBreaker",
      "The image is pushed after the first deployment. A circuit breaker would count the pulls that fail until then.",
    );
    return service;
  }

  // The CloudWatch agent reads NVIDIA's exporter in the other container, and writes the metrics to a log group as embedded metrics.
  addCollector(task) {
    const group = this.addLogGroup("Metrics", `/aws/ecs/containerinsights/${CLUSTER}/prometheus`);
    const labels = { ClusterName: CLUSTER, ServiceName: SERVICE };
    const scrape = {
      global: { scrape_interval: "15s", scrape_timeout: "10s" },
      scrape_configs: [{ job_name: "dcgm", static_configs: [{ targets: ["127.0.0.1:9400"], labels }] }],
    };
    const declaration = {
      source_labels: ["job"],
      label_matcher: "^dcgm$",
      dimensions: [["ClusterName", "ServiceName"]],
      metric_selectors: ["^DCGM_FI_DEV_"],
    };
    const agent = {
      logs: {
        metrics_collected: {
          prometheus: {
            cluster_name: CLUSTER,
            log_group_name: group.logGroupName,
            prometheus_config_path: "env:PROMETHEUS_CONFIG_CONTENT",
            emf_processor: { metric_namespace: "ECS/ContainerInsights/Prometheus", metric_declaration: [declaration] },
          },
        },
        force_flush_interval: 5,
      },
    };
    task.addContainer("collector", {
      image: ecs.ContainerImage.fromRegistry("public.ecr.aws/cloudwatch-agent/cloudwatch-agent:latest"),
      essential: false,
      memoryReservationMiB: 128,
      environment: { CW_CONFIG_CONTENT: JSON.stringify(agent), PROMETHEUS_CONFIG_CONTENT: JSON.stringify(scrape) },
      logging: ecs.LogDrivers.awsLogs({ streamPrefix: "collector", logGroup: this.addLogGroup("CollectorLog") }),
    });
    task.taskRole.addManagedPolicy(iam.ManagedPolicy.fromAwsManagedPolicyName("CloudWatchAgentServerPolicy"));
  }

  followGpuLoad(service, cooldown) {
    const target = new applicationautoscaling.ScalableTarget(this, "Tasks", {
      serviceNamespace: applicationautoscaling.ServiceNamespace.ECS,
      resourceId: `service/${CLUSTER}/${service.serviceName}`,
      scalableDimension: "ecs:service:DesiredCount",
      ...TASKS,
    });
    target.scaleToTrackMetric("GpuLoad", {
      customMetric: new cloudwatch.Metric({
        namespace: "ECS/ContainerInsights/Prometheus",
        metricName: "DCGM_FI_DEV_GPU_UTIL",
        dimensionsMap: { ClusterName: CLUSTER, ServiceName: SERVICE },
        statistic: "Average",
      }),
      targetValue: TARGET_PERCENT,
      scaleInCooldown: cooldown,
      scaleOutCooldown: cooldown,
    });
  }

  addLogGroup(id, logGroupName) {
    return new logs.LogGroup(this, id, {
      logGroupName,
      retention: logs.RetentionDays.ONE_WEEK,
      removalPolicy: cdk.RemovalPolicy.DESTROY,
    });
  }
}

const app = new cdk.App();
new GpuService(app, "GpuService", {
  env: { account: process.env.CDK_DEFAULT_ACCOUNT, region: process.env.CDK_DEFAULT_REGION },
});
