"""The command line as a user waits for it: each verb is a new process, from its start to its end."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path

from client import Caller, replay, signed
from launches import TRUE
from local import Local, corral, register
from rows import Bench, Row

from stacks import stack_seconds

GPUS = 4
SUBMISSIONS = 20
SUBMISSIONS_MAX_S = 5.0
VERB_MAX_S = 0.25
LONG_LIST_MAX_S = 1.0
TASKS_PER_CALL = 10  # of RunTask
CONNECTIONS = 4
VERBS = (
    ("ps",),
    ("ps", "--all"),
    ("status",),
    ("history",),
    ("show", "ended"),
    ("logs", "ended"),
    ("wait", "ended"),
    ("exec", "sweep-1", "true"),
    ("run", "-d", "-n", "held-{}", "--hold", "true"),
    ("release", "held-{}"),
    ("rerun", "-d", "ended"),
    ("stop", "sweep-{}"),
    ("config",),
    ("env",),
    ("instances",),
    ("stack",),
    ("stack", "fleet"),
    ("fleet", "fleet", "--once"),
    ("pipeline", "list"),
    ("images",),
    ("metrics",),
    ("--version",),
)  # {}: the number of the time that the verb is measured

FLEET = """
Resources:
  Queue: {Type: AWS::SQS::Queue}
  Template: {Type: AWS::EC2::LaunchTemplate, Properties: {LaunchTemplateData: {ImageId: ami-1, InstanceType: m5.large}}}
  Group:
    Type: AWS::AutoScaling::AutoScalingGroup
    Properties:
      {MinSize: 1, MaxSize: 1, AvailabilityZones: !GetAZs "", LaunchTemplate:
        {LaunchTemplateId: !Ref Template, Version: !GetAtt Template.LatestVersionNumber}}
  Policy:
    Type: AWS::AutoScaling::ScalingPolicy
    Properties: {AutoScalingGroupName: !Ref Group, AdjustmentType: ChangeInCapacity, ScalingAdjustment: 1}
  Alarm:
    Type: AWS::CloudWatch::Alarm
    Properties:
      {Namespace: AWS/SQS, MetricName: ApproximateNumberOfMessagesVisible, Dimensions: [{Name: QueueName, Value:
        !GetAtt Queue.QueueName}], Statistic: Maximum, Period: 60, EvaluationPeriods: 1, Threshold: 1, ComparisonOperator:
        GreaterThanThreshold, AlarmActions: [!Ref Policy]}
"""  # a stack with a group of one instance that follows a queue


def rows(bench: Bench) -> list[Row]:
    times = bench.size(11, 3)
    with corral(bench, "commands", f"sim:{GPUS}") as local:
        line = CommandLine(local)
        floor = statistics.median(line.floor() for _ in range(times))
        found = [_submissions(line)]
        line.timed("run", "-n", "ended", "true")
        call = Caller(local.port)
        stack_seconds(call, "CreateStack", "fleet", "CREATE_COMPLETE", FLEET)
        call.close()
        for verb in VERBS:
            seconds = statistics.median(line.timed(*(word.format(at) for word in verb)) for at in range(times))
            what = " ".join(verb).replace("-{}", "")
            found.append(Row(f"corral {what}", seconds, "s", floor, "python -c pass", budget=VERB_MAX_S))
        found.append(_long_list(line, local, bench.size(100_000, 2_000), times))
    return found


class CommandLine:
    """Starts `corral` for one server."""

    def __init__(self, local: Local) -> None:
        self._program = str(Path(sys.executable).with_name("corral"))
        self._environment = {**os.environ, "CORRAL_DATA": str(local.data)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed Corral has bytecode

    def timed(self, *words: str) -> float:
        return self._timed([self._program, *words])

    def floor(self) -> float:
        return self._timed([sys.executable, "-c", "pass"])

    def _timed(self, command: list[str]) -> float:
        began = time.perf_counter()
        subprocess.run(command, env=self._environment, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


def _submissions(line: CommandLine) -> Row:
    """The loop of a shell script. The runs sleep, so that most of them wait, and the verbs have something to show."""
    took = sum(line.timed("run", "-d", "-g", "1", "-n", f"sweep-{at}", "sleep", "600") for at in range(SUBMISSIONS))
    return Row(f"{SUBMISSIONS} × corral run -d, one after the other", took, "s", budget=SUBMISSIONS_MAX_S)


def _long_list(line: CommandLine, local: Local, waiting: int, times: int) -> Row:
    call = Caller(local.port)
    family = register(call, "waiting", [TRUE], gpus=GPUS)
    call.close()
    request = signed(local.port, "ecs", "RunTask", {"taskDefinition": family, "count": TASKS_PER_CALL})
    replay(local.port, repeat(request, waiting // TASKS_PER_CALL), CONNECTIONS, 1e9)
    seconds = statistics.median(line.timed("ps") for _ in range(times))
    return Row(f"corral ps, {waiting:,} tasks wait", seconds, "s", budget=LONG_LIST_MAX_S)
