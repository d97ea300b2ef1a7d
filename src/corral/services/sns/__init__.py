"""SNS: topics, subscriptions and published messages. Messages are delivered to SQS queues and Lambda functions."""
