"""SQS: standard and FIFO queues. A message is durable before the response to its SendMessage is sent."""
