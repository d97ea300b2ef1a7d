# A GPU fleet as people write it: a network, roles, a launch template, an Auto Scaling group and an ECS cluster.

terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}

provider "aws" {}

variable "ssh_from" {
  type    = list(string)
  default = ["10.0.0.0/8"]
}
variable "team" { default = "ml" }

data "aws_caller_identity" "me" {}
data "aws_availability_zones" "all" { state = "available" }
data "aws_ssm_parameter" "image" { name = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id" }

resource "aws_vpc" "main" {
  cidr_block           = "10.0.0.0/16"
  enable_dns_hostnames = true
  tags                 = { Name = "gpu" }
}

resource "aws_internet_gateway" "main" { vpc_id = aws_vpc.main.id }

resource "aws_subnet" "public" {
  count                   = 2
  vpc_id                  = aws_vpc.main.id
  cidr_block              = cidrsubnet(aws_vpc.main.cidr_block, 8, count.index)
  availability_zone       = data.aws_availability_zones.all.names[count.index]
  map_public_ip_on_launch = true
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.main.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.main.id
  }
}

resource "aws_route_table_association" "public" {
  count          = 2
  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public.id
}

resource "aws_eip" "nat" { domain = "vpc" }

resource "aws_vpc_endpoint" "s3" {
  vpc_id          = aws_vpc.main.id
  service_name    = "com.amazonaws.us-east-1.s3"
  route_table_ids = [aws_route_table.public.id]
}

resource "aws_security_group" "workers" {
  name        = "workers"
  description = "GPU workers"
  vpc_id      = aws_vpc.main.id
  ingress {
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = var.ssh_from
    description = "ssh"
  }
  ingress {
    from_port = 0
    to_port   = 0
    protocol  = "-1"
    self      = true
  }
  egress {
    from_port        = 0
    to_port          = 0
    protocol         = "-1"
    cidr_blocks      = ["0.0.0.0/0"]
    ipv6_cidr_blocks = ["::/0"]
  }
}

resource "aws_vpc_security_group_ingress_rule" "metrics" {
  security_group_id            = aws_security_group.storage.id
  referenced_security_group_id = aws_security_group.workers.id
  from_port                    = 9400
  to_port                      = 9400
  ip_protocol                  = "tcp"
  tags                         = { Name = "metrics" }
}

resource "aws_security_group" "storage" {
  name_prefix = "storage-"
  vpc_id      = aws_vpc.main.id
}

resource "aws_iam_role" "instance" {
  name                 = "gpu-instance"
  description          = "instances of ${var.team}"
  max_session_duration = 7200
  tags                 = { team = var.team }
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Action = "sts:AssumeRole", Effect = "Allow", Sid = "", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "queue" {
  name = "queue"
  role = aws_iam_role.instance.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "sqs:*", Resource = "arn:aws:sqs:us-east-1:${data.aws_caller_identity.me.account_id}:${var.team}-*" }
    ]
  })
}

resource "aws_iam_policy" "logs" {
  name = "logs"
  path = "/ml/"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = ["logs:CreateLogStream", "logs:PutLogEvents"], Resource = "*" }]
  })
}

resource "aws_iam_role_policy_attachment" "logs" {
  role       = aws_iam_role.instance.name
  policy_arn = aws_iam_policy.logs.arn
}

resource "aws_iam_role_policy_attachment" "ecs" {
  role       = aws_iam_role.instance.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "main" {
  name = "gpu-instance"
  role = aws_iam_role.instance.name
}

resource "aws_iam_service_linked_role" "spot" { aws_service_name = "spotfleet.amazonaws.com" }

resource "aws_ecs_cluster" "main" {
  name = "gpu"
  setting {
    name  = "containerInsights"
    value = "enabled"
  }
}

resource "aws_launch_template" "gpu" {
  name_prefix            = "gpu-"
  image_id               = data.aws_ssm_parameter.image.value
  instance_type          = "t3.large"
  update_default_version = true
  vpc_security_group_ids = [aws_security_group.workers.id]
  user_data              = base64encode("#!/bin/bash\necho ECS_CLUSTER=${aws_ecs_cluster.main.name} >> /etc/ecs/ecs.config\n")
  iam_instance_profile { arn = aws_iam_instance_profile.main.arn }
  metadata_options {
    http_tokens   = "required"
    http_endpoint = "enabled"
  }
  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = 100
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }
  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "gpu", team = var.team }
  }
}

resource "aws_autoscaling_group" "gpu" {
  name                = "gpu"
  min_size            = 0
  max_size            = 2
  desired_capacity    = 1
  vpc_zone_identifier = aws_subnet.public[*].id
  launch_template {
    id      = aws_launch_template.gpu.id
    version = "$Latest"
  }
  tag {
    key                 = "team"
    value               = var.team
    propagate_at_launch = true
  }
}
