"""The `corral` command line. Each command has its own module, which calls botocore and prints the result.

Slow imports are inside the functions that need them, so that `corral --help` and `corral env` start quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

import corral
from corral.cli.aws import aws
from corral.cli.backup import backup
from corral.cli.check import check
from corral.cli.completion import completion
from corral.cli.config import config
from corral.cli.cost import cost
from corral.cli.doctor import doctor
from corral.cli.down import down
from corral.cli.env import env
from corral.cli.errors import INTERRUPTED, error_line
from corral.cli.exec import exec_
from corral.cli.fleet import fleet
from corral.cli.gpu import gpu
from corral.cli.history import history
from corral.cli.hold import hold
from corral.cli.images import images
from corral.cli.instances import instances
from corral.cli.login import login
from corral.cli.logs import logs
from corral.cli.metrics import metrics
from corral.cli.output import print_message
from corral.cli.pipeline import pipeline
from corral.cli.ps import ps
from corral.cli.release import release
from corral.cli.restore import restore
from corral.cli.revoke import revoke
from corral.cli.run import run
from corral.cli.service import service
from corral.cli.show import show
from corral.cli.spot import spot
from corral.cli.stack import stack
from corral.cli.status import status
from corral.cli.stop import stop
from corral.cli.top import top
from corral.cli.up import up
from corral.cli.wait import wait


class Commands(click.Group):
    """The group of all commands. `--help` lists them in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. If it fails, print one line to stderr. Print a traceback only for a bug of Corral."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = INTERRUPTED
        except BrokenPipeError:
            # The reader has closed the pipe, as in `corral ps | head -1`. Without this line, Python prints an error when it flushes
            # stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            line = error_line(error)
            if line is None:
                raise
            print_message(line)
            code = 1
        sys.exit(code)


@click.group(name="corral", cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(corral.__version__, prog_name="corral")
def main() -> None:
    """Your GPUs behind the AWS container APIs.

    \b
    corral up --detach          start Corral on this machine
    eval "$(corral env)"        configure aws, boto3 and other clients to use it
    corral run --gpus 1 -- python train.py
    """


for command in (
    up, down, status, config, service, env, aws, run, ps, logs, exec_, wait, stop, release, history, show, top, hold, gpu, instances,
    spot, stack, fleet, pipeline, cost, metrics, login, images, revoke, backup, restore, check, doctor, completion,
):  # fmt: skip
    main.add_command(command)
