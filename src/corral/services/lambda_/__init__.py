"""Lambda: functions in Python that run as processes of this machine, invoked by requests, SNS and custom resources of stacks."""
