"""SQS: queues, and messages that are there from the moment they are sent."""
