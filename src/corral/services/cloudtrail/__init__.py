"""AWS CloudTrail: reads the audit."""
