"""`corral doctor` checks whether Corral can run on this machine, and advises what to fix.

`installation.py` and `machine.py` have the checks. If a check raises an exception, the exception becomes a finding,
and the other checks still run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

import click

from corral.cli.checks.finding import FAIL, OK, WARN, Finding, warn
from corral.cli.client.data_folder import DataFolder, data_option, host_folder, joined_host
from corral.cli.printing.errors import CliError, error_line
from corral.cli.printing.output import console, count, print_json

SIGNS = {OK: ("✓", "green"), WARN: ("!", "yellow"), FAIL: ("✗", "red")}
Check = Callable[[DataFolder], Iterator[Finding]]


@click.command(short_help="Check this machine, and advise what to fix.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON: check, level, found, advice.")
def doctor(data: DataFolder, as_json: bool) -> None:
    """Check driver, GPUs, disk, clock, ports and more, and advise what to fix. The exit code is 1 if a check finds a failure."""
    if is_host := joined_host(data) is not None:
        data = data if data.chosen else data._replace(path=host_folder())
    findings = [(name, finding) for name, check in _checks(is_host=is_host).items() for finding in _examined(check, data)]
    if as_json:
        print_json([{"check": name, **asdict(finding)} for name, finding in findings])
    else:
        _print(findings)
    sys.exit(any(finding.level == FAIL for _, finding in findings))


def _checks(*, is_host: bool) -> dict[str, Check]:
    """Return the checks. `is_host`: for a host that has joined a server on another machine."""
    from corral.cli.checks import installation, joined_host, machine, tls

    of_host: dict[str, Check] = {
        "server": joined_host.check_server,
        "port": joined_host.check_gateway,
        "start at boot": joined_host.check_boot,
    }
    return {
        "version": installation.check_version,
        "data folder": installation.check_folder,
        "configuration": installation.check_configuration,
        "server": installation.check_server,
        "port": installation.check_port,
        "tls": tls.check_tls,
        "lenders": installation.check_lenders,
        "start at boot": installation.check_boot,
        "nvidia driver": machine.check_driver,
        "docker": machine.check_docker,
        "cgroups": machine.check_cgroups,
        "limits": machine.check_limits,
        "proxy": installation.check_proxy,
        "aws environment": installation.check_aws_environment,
        "aws command": installation.check_aws_command,
    } | (of_host if is_host else {})


def _examined(check: Check, data: DataFolder) -> Iterator[Finding]:
    try:
        yield from check(data)
    except Exception as error:
        reason = error.message if isinstance(error, CliError) else error_line(error) or repr(error)
        yield warn(f"could not be checked: {reason}")


def _print(findings: list[tuple[str, Finding]]) -> None:
    from rich.table import Table

    from corral.cli.printing.safe_text import SafeText

    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=1)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    previous = ""
    for name, finding in findings:
        sign, style = SIGNS[finding.level]
        text = SafeText(finding.found)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="cyan")
        table.add_row(SafeText(sign, style=style), name if name != previous else "", text)
        previous = name
    out.print(table)
    failures, warnings = (sum(finding.level == level for _, finding in findings) for level in (FAIL, WARN))
    out.print(f"\n{count(failures, 'failure')}, {count(warnings, 'warning')}")
