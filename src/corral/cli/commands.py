"""The `corral` command line. Each command has its own module, which calls AWS operations and prints the result.

The module of a command is imported when the command runs, so that every command starts quickly. The table `SUMMARIES` lists the
commands for `corral --help` and for the completion of command names. Slow imports are inside the functions that need them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from corral.cli.printing.errors import INTERRUPTED, error_line
from corral.cli.printing.output import print_line, print_message

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The module of each command, whose last part is the name of the command, and its line in `corral --help`. The commands are in the
# order in which a new user needs them. To add a command, write its module and add a line here.
MODULES = {
    "server.up": "Start Corral on this machine.",
    "server.down": "Stop Corral.",
    "screens.status": "Show hosts, GPUs and tasks.",
    "server.config": "Show and change the settings of Corral.",
    "server.service": "Start Corral at boot, with systemd.",
    "hosts.hosts": "List the machines on which tasks run.",
    "hosts.token": "Create, list and revoke tokens with which hosts join.",
    "hosts.join": "Let this machine run tasks of a server on another machine.",
    "hosts.lenders": "List the lenders of machines and their allocations.",
    "console": "Open the web console.",
    "env": "Print the environment variables for aws and boto3.",
    "aws": "Run the aws command with this Corral.",
    "runs.run": "Run a command as a task and show its output.",
    "runs.ps": "List running and waiting tasks.",
    "runs.logs": "Print the logs of tasks.",
    "runs.exec": "Run a command in a running task.",
    "runs.wait": "Wait until tasks have stopped.",
    "runs.stop": "Stop tasks.",
    "runs.pause": "Pause running tasks, so that others get their GPUs.",
    "runs.resume": "Let paused tasks continue.",
    "runs.set": "Change tasks that wait: priority, time limit, GPUs, hold.",
    "runs.release": "Let held tasks start.",
    "runs.history": "List the runs that have ended.",
    "runs.show": "Show everything about one run.",
    "runs.rerun": "Run the command of an earlier run again.",
    "screens.top": "Watch GPUs and tasks live.",
    "hold": "Hold a GPU so that no task gets it.",
    "gpu": "Let a failed GPU be used again.",
    "instances": "List EC2 instances and the reasons of their launches, waits and ends.",
    "spot": "Interrupt spot instances.",
    "stack": "Show CloudFormation stacks, and compare them with templates.",
    "fleets.fleet": "Watch workers that a policy scales, and their last scale-out.",
    "pipelines.pipeline": "Run pipelines of AWS Batch jobs from a YAML file.",
    "cost": "Show what instance-hours and GPU-hours cost.",
    "usage": "Show who has used the GPUs, and what was idle.",
    "metrics": "Print the metrics for Prometheus.",
    "login": "Log docker in to the image registry.",
    "images": "List repositories and their images.",
    "people.user": "Add, list and remove people.",
    "people.limits": "Set and show the limits of people.",
    "people.connect": "Connect to a Corral on which you have a user.",
    "revoke": "Revoke temporary credentials.",
    "audit": "Show who changed what, and what was denied.",
    "server.backup": "Back up the data folder.",
    "server.restore": "Restore a backup into a new data folder.",
    "server.check": "Check databases and objects for damage.",
    "server.uninstall": "Remove what Corral has made on this machine.",
    "checks.doctor": "Check this machine, and advise what to fix.",
    "runs.completion": "Print the completion script of your shell.",
}
_PATHS = {module.rpartition(".")[2]: module for module in MODULES}
SUMMARIES = {module.rpartition(".")[2]: summary for module, summary in MODULES.items()}


class CommandModules(Mapping[str, click.Command]):
    """The commands by name. A command is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        module = import_module(f"corral.cli.{_PATHS[name]}")
        found = getattr(module, name, None) or getattr(module, f"{name}_")  # the function `exec_` avoids the name of a builtin
        assert isinstance(found, click.Command)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=text) for name, text in SUMMARIES.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find and import the command. From then on, Ctrl-C raises KeyboardInterrupt (see `corral/__main__.py`)."""
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

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
            # The reader has closed the pipe, as in `corral ps | head -1`. The next line prevents the error that Python would print
            # when it flushes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            line = error_line(error)
            if line is None:
                raise
            print_message(line)
            code = 1
        sys.exit(code)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from corral.version import full_version

        print_line(f"corral {full_version()}")
        context.exit()


@click.group(
    name="corral",
    cls=Commands,
    commands=CommandModules(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
              help="Show the version and the commit, and exit.")  # fmt: skip
def main() -> None:
    """Your GPUs behind the AWS container APIs.

    \b
    corral up --detach          start Corral on this machine
    eval "$(corral env)"        configure aws, boto3 and other clients to use it
    corral run --gpus 1 -- python train.py
    """
