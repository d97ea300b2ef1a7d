"""`corral pipeline`: executes a pipeline of AWS Batch jobs from a YAML file, and watches, lists, stops and retries its executions.

All commands use AWS's APIs (Batch, S3, CloudWatch Logs), so they also work on AWS. `file.py` reads the file,
`plan.py` decides which jobs are submitted, and `executions.py` finds executions by the tags of their jobs. These modules are
imported when a command runs, so that other commands start quickly.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, find_endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import console, count, print_json, print_line, print_message, print_text
from corral.cli.runs.logs import TAIL_MAX

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from corral.cli.pipelines.executions import FoundExecution
    from corral.cli.pipelines.state import Execution

LIST_DEFAULT = 10
RUN_HELP = "RUN is the id of a run. The name of a pipeline means its last run. Default: the last run of all pipelines."


def _complete_executions(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from corral.cli.pipelines.executions import find_executions
    from corral.cli.runs.completion import without_errors

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        return [CompletionItem(found.id) for found in find_executions(endpoint) if found.id.startswith(prefix)]

    return without_errors(ctx, suggestions)


def _complete_steps(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from corral.cli.pipelines.executions import find_execution, load_plan
    from corral.cli.runs.completion import without_errors

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        plan = load_plan(endpoint, find_execution(endpoint, ctx.params.get("run_id")))
        return [CompletionItem(step.name, help=count(step.size, "job")) for step in plan.steps if step.name.startswith(prefix)]

    return without_errors(ctx, suggestions)


run_argument = click.argument("run_id", metavar="[RUN]", required=False, shell_complete=_complete_executions)


@click.group(short_help="Run pipelines of AWS Batch jobs from a YAML file.")
def pipeline() -> None:
    """Run pipelines of AWS Batch jobs from a YAML file.

    \b
    corral pipeline run FILE            submit the steps of FILE, and watch them
    corral pipeline watch [RUN]         watch a run, and submit deferred steps
    corral pipeline list                show the last runs and their cost
    corral pipeline logs STEP[INDEX]    print the log of a step or of one job
    corral pipeline stop [RUN]          stop a run
    corral pipeline retry [RUN]         submit the jobs that failed again
    """


@pipeline.command("run", short_help="Submit the steps of a file, and watch them.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_option
@click.option("--name", help="The name of the pipeline (default: `name:` in FILE).")
@click.option(
    "--parameter", "-p", "given", multiple=True, metavar="KEY=VALUE", help="A value for `parameters:` in FILE. Can be repeated."
)
@click.option("--dry-run", is_flag=True, help="Print what would be submitted. Submit nothing.")
@click.option("--watch/--detach", "watches", default=True, help="Watch the run until it ends (default), or return at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan, or the run when it has ended, as JSON.")
def run_(
    file: Path, data: DataFolder, name: str | None, given: tuple[str, ...], dry_run: bool, watches: bool, as_json: bool
) -> None:
    """Submit the steps of FILE as AWS Batch jobs that depend on each other.

    A step after a step with `max_failed` cannot use Batch's dependencies. This command, or `corral pipeline watch`, submits it when
    the earlier step has ended.

    The exit code is 1 if the run fails.
    """
    from secrets import token_hex

    from corral.cli.pipelines.executions import count_lines, existing_definitions
    from corral.cli.pipelines.file import read_pipeline
    from corral.cli.pipelines.plan import make_plan

    read = read_pipeline(file, _parameters(given), name)
    endpoint = find_endpoint(data)
    counts = count_lines(endpoint, read)
    plan = make_plan(read, token_hex(4), counts, existing_definitions(endpoint, read))
    if dry_run:
        from corral.cli.pipelines.dry_run import plan_document, print_plan

        print_json(plan_document(plan, counts)) if as_json else print_plan(plan)
        return
    from corral.cli.pipelines.submit import start_execution
    from corral.cli.pipelines.watch import watch_to_the_end

    jobs = start_execution(endpoint, plan, counts)
    later = [step.name for step in plan.deferred]
    if not watches:
        print_json({"id": plan.id, "jobs": jobs, "deferred": later}) if as_json else print_line(plan.id)
        if later:
            print_message(
                f"not submitted yet: {', '.join(later)}. `corral pipeline watch {plan.id}` submits them when they are ready."
            )
        return
    print_message(f"submitted {count(sum(map(len, jobs.values())), 'job')} as {plan.id}.")
    watch_to_the_end(endpoint, plan, as_json=as_json)


def _parameters(given: tuple[str, ...]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise click.BadParameter(f"'{each}' is not KEY=VALUE.", param_hint="--parameter")
    return dict(each.split("=", 1) for each in given)


# Executions


@pipeline.command(short_help="Watch a run, and submit its deferred steps.", help=f"""Watch a run until it ends. {RUN_HELP}

    Deferred steps are the steps after a step with `max_failed`. They are submitted only while `run` or `watch` is running. With
    --once or --json, the command prints the present state and submits nothing. Press q to leave; the run continues. The exit code
    is 1 if the run has failed or was stopped.
    """)  # fmt: skip
@run_argument
@data_option
@click.option("--once", is_flag=True, help="Print the present state once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the present state as JSON and exit.")
def watch(run_id: str | None, data: DataFolder, once: bool, as_json: bool) -> None:
    from corral.cli.pipelines.executions import find_execution, load_plan, read_state
    from corral.cli.pipelines.screen import frame
    from corral.cli.pipelines.watch import earlier_times, execution_document, report, watch_to_the_end

    endpoint = find_endpoint(data)
    found = find_execution(endpoint, run_id)
    plan = load_plan(endpoint, found)
    if not once and not as_json:
        watch_to_the_end(endpoint, plan, as_json=False)
        return
    state, now_s = read_state(endpoint, plan, earlier_times(endpoint, plan))
    if as_json:
        usage, earlier = report(endpoint, state) if state.ended else (None, [])
        print_json(execution_document(state, usage, earlier))
    else:
        out = console()
        out.print(frame(state, now_s, out.width))
    if state.state in ("FAILED", "STOPPED"):
        raise SystemExit(1)


@pipeline.command("list", short_help="Show the last runs, their times and their cost.")
@click.argument("name", required=False)
@data_option
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=LIST_DEFAULT, show_default=True, metavar="N", help="Show the last N runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def list_(name: str | None, data: DataFolder, limit: int, as_json: bool) -> None:
    """Show the last runs of all pipelines, or of the pipeline NAME: state, times, GPU-hours and cost.

    Batch keeps a job for seven days after its end. Older runs are not shown.
    """
    from corral.cli.pipelines.cost import Prices, execution_usage
    from corral.cli.pipelines.executions import find_executions, server_now
    from corral.cli.pipelines.screen import print_executions
    from corral.cli.pipelines.watch import list_row

    endpoint = find_endpoint(data)
    prices, rows = Prices(endpoint), []
    now_s = server_now(client(endpoint, "batch").describe_job_queues(maxResults=1))
    for found in find_executions(endpoint, name)[:limit]:
        state = _state_of(endpoint, found)
        usage = execution_usage(endpoint, found, prices) if state.ended else None
        rows.append(list_row(state, found, usage, now_s))
    if as_json:
        print_json(rows)
    elif rows:
        print_executions(rows)
    else:
        print_text("No runs in the last seven days. `corral pipeline run FILE` starts one.")


def _state_of(endpoint: Endpoint, found: FoundExecution) -> Execution:
    from corral.cli.pipelines.executions import load_plan
    from corral.cli.pipelines.state import execution_state

    return execution_state(load_plan(endpoint, found), found.jobs)


@pipeline.command(short_help="Print the log of a step, or of one child of an array.")
@click.argument("step", metavar="STEP[INDEX]", shell_complete=_complete_steps)
@data_option
@click.option("--run", "run_id", metavar="RUN", shell_complete=_complete_executions, help=RUN_HELP)
@click.option("--follow", "-f", "following", is_flag=True, help="Follow the log until the job has ended.")
@click.option("--tail", type=click.IntRange(0, TAIL_MAX), metavar="N", help="Only the last N events.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with the time of its event (UTC).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: timestamp, message, ingestionTime, container.")
def logs(
    step: str, data: DataFolder, run_id: str | None, following: bool, tail: int | None, timestamps: bool, as_json: bool
) -> None:
    """Print the log of STEP, or of one child of an array: `recon[17]`, or `recon:17` in shells that read brackets as a pattern.

    After a retry, it is the log of the newest job with this index.
    """
    from corral.cli.pipelines.executions import find_execution, load_plan
    from corral.cli.pipelines.logs import find_log_job, print_log
    from corral.cli.pipelines.state import execution_state

    endpoint = find_endpoint(data)
    found = find_execution(endpoint, run_id)
    plan = load_plan(endpoint, found)
    job_id = find_log_job(endpoint, plan, execution_state(plan, found.jobs), step)
    print_log(endpoint, job_id, following=following, tail=tail, timestamps=timestamps, as_json=as_json)


@pipeline.command(short_help="Stop a run.", help=f"""Terminate the running jobs of a run, and cancel the waiting jobs. {RUN_HELP}

    Steps that are not yet submitted stay unsubmitted until `corral pipeline retry --failed` continues the run.
    """)  # fmt: skip
@run_argument
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def stop(run_id: str | None, data: DataFolder, as_json: bool) -> None:
    from corral.cli.pipelines.executions import find_execution, server_now
    from corral.cli.pipelines.submit import describe_stop, stop_execution

    endpoint = find_endpoint(data)
    found = find_execution(endpoint, run_id)
    state = _state_of(endpoint, found)
    if state.ended:
        raise CliError(f"{found.id} has ended already: {state.state}.")
    now = datetime.fromtimestamp(server_now(client(endpoint, "batch").describe_job_queues(maxResults=1)), UTC)
    done = stop_execution(endpoint, found, state, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if as_json:
        print_json({"id": found.id, "steps": done})
        return
    for each in done:
        print_line(describe_stop(state.step(each["step"]), each["action"]))
    print_message(f"stopped {found.id}.")


@pipeline.command(short_help="Submit the failed jobs again, and the steps after them.",
                  help=f"""Submit again the jobs of a run that failed or never ran, and the steps after them. {RUN_HELP}

    Of an array, only the children that failed run again. Batch cannot run chosen indexes, so they are a new, smaller array.
    Each child gets its original AWS_BATCH_JOB_ARRAY_INDEX and ARRAY_SIZE.
    """)  # fmt: skip
@run_argument
@data_option
@click.option("--failed", is_flag=True, default=True, help="Retry what has failed (default).")
@click.option("--wrap/--no-wrap", "wraps", default=True,
              help="With --no-wrap, the command is not started by /bin/sh, and must read CORRAL_ARRAY_INDEXES itself.")  # fmt: skip
@click.option("--watch/--detach", "watches", default=True, help="Watch the run until it ends (default), or return at once.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the run as JSON when it has ended, or with --detach what was submitted."
)
def retry(run_id: str | None, data: DataFolder, failed: bool, wraps: bool, watches: bool, as_json: bool) -> None:
    from corral.cli.pipelines.executions import find_execution, load_plan, read_state
    from corral.cli.pipelines.plan import format_indexes
    from corral.cli.pipelines.submit import retry_execution
    from corral.cli.pipelines.watch import watch_to_the_end

    endpoint = find_endpoint(data)
    found = find_execution(endpoint, run_id)
    plan = load_plan(endpoint, found)
    state, _ = read_state(endpoint, plan)
    if not state.ended:
        raise CliError(f"{found.id} is {state.state}. Wait until it has ended, or stop it with `corral pipeline stop {found.id}`.")
    submitted = retry_execution(endpoint, plan, found, state, wraps=wraps)
    for name, each in submitted.items():
        planned = plan.step(name)
        part = f" of {planned.size}: {format_indexes(each['indexes'])}" if len(each["indexes"]) < planned.size else ""
        print_message(f"submitted {name} again ({count(len(each['indexes']), 'job')}{part}).")
    if watches:
        watch_to_the_end(endpoint, plan, as_json=as_json)
    elif as_json:
        print_json({"id": found.id, "steps": submitted})
    else:
        print_line(found.id)
