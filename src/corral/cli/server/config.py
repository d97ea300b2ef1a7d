"""`corral config` shows and changes the settings in corral.toml of the data folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_line, print_message, print_table
from corral.cli.server.systemd_unit import restart_commands

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from corral.configuration.file import ConfigurationFile
    from corral.configuration.settings import ConfigurationSetting

DEFAULT, FILE, ENVIRONMENT = "default", "file", "environment"
READ_BY_COMMANDS = ("run.notify",)  # `corral run` reads these settings, so a change needs no restart of the server
VARIABLES = {"up.port": "CORRAL_PORT"}  # setting → the environment variable that overrides it in `corral up`


def _complete_settings(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from corral.configuration.settings import SETTINGS

    return [CompletionItem(name, help=each.about) for name, each in SETTINGS.items() if name.startswith(prefix)]


@click.group(invoke_without_command=True, short_help="Show and change the settings of Corral.")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
@click.pass_context
def config(context: click.Context, data: DataFolder, as_json: bool) -> None:
    """Show all settings: their values, and where each value comes from.

    The settings are in the file corral.toml in the data folder. `corral up` stores its options there. You can also edit the file by
    hand. When Corral changes the file, it keeps your comments. The server reads the file when it starts.

    \b
    corral config                        show all settings
    corral config set up.gpus sim:4      change a setting
    corral config unset up.gpus          use the default again
    corral config path                   print the path of the file
    """
    context.obj = data
    if context.invoked_subcommand is not None:
        return
    with _errors():
        shown = _settings(data)
    if as_json:
        print_json(shown)
        return
    _print(shown, data)


@config.command("set", short_help="Change a setting.")
@click.argument("name", shell_complete=_complete_settings)
@click.argument("value", nargs=-1, required=True)
@data_option
@click.pass_obj
def set_(outer: DataFolder, name: str, value: tuple[str, ...], data: DataFolder) -> None:
    """Store a setting in corral.toml. `corral config` lists the names. The server uses the value after its next start."""
    with _errors():
        from corral.configuration.file import find_setting, store_settings

        setting, folder = find_setting(name), _folder(outer, data)
        if len(value) > 1 and not isinstance(setting.default, list):
            raise click.UsageError(f"{setting.name} takes one value, not {len(value)}. Put a value with spaces in quotation marks.")
        store_settings(folder.path, {setting.name: setting.parse(value)})
    _remind(folder, setting.name)


@config.command(short_help="Use the default of a setting again.")
@click.argument("name", shell_complete=_complete_settings)
@data_option
@click.pass_obj
def unset(outer: DataFolder, name: str, data: DataFolder) -> None:
    """Remove a setting from corral.toml. Names that Corral does not know are removed, too."""
    with _errors():
        from corral.configuration.file import find_setting, read_file, remove_setting

        folder = _folder(outer, data)
        table, _, key = name.partition(".")
        content = read_file(folder.path).document.get(table)
        if not isinstance(content, dict) or key not in content:
            setting = find_setting(name)
            print_message(f"{setting.name} is not set in {read_file(folder.path).path}. Its default is {_text(setting.default)}.")
            return
        remove_setting(folder.path, table, key)
    _remind(folder, name)


@config.command(short_help="Print the path of corral.toml.")
@data_option
@click.pass_obj
def path(outer: DataFolder, data: DataFolder) -> None:
    """Print the path of corral.toml. The file may not exist yet."""
    from corral.configuration.file import read_file

    with _errors():
        print_line(str(read_file(_folder(outer, data).path).path))


@contextmanager
def _errors() -> Iterator[None]:
    """Convert an error of corral.toml to an error of this command."""
    from corral.configuration.file import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise CliError(str(error)) from None


def _folder(outer: DataFolder, data: DataFolder) -> DataFolder:
    """Return the folder of --data, which may be before or after the subcommand."""
    return outer if outer.chosen and not data.chosen else data


def _settings(data: DataFolder) -> list[dict[str, Any]]:
    """Return all settings with their values, and where each value comes from."""
    from corral.configuration.file import read_file
    from corral.configuration.settings import HAND_WRITTEN, SETTINGS

    file = read_file(data.path)
    stored, about = file.stored(), data_folder.running(data)
    running = {f"up.{name}": value for name, value in (about["options"] if about else {}).items()}
    shown = [_shown(file, setting, stored, running) for setting in SETTINGS.values()]
    for table in HAND_WRITTEN:
        entries = file.document.get(table, {})
        if isinstance(entries, dict):
            shown += [{"name": f"{table}.{name}", "value": value, "source": FILE} for name, value in entries.items()]
    return shown


def _shown(
    file: ConfigurationFile, setting: ConfigurationSetting, stored: dict[str, Any], running: dict[str, Any]
) -> dict[str, Any]:
    value, source, line = stored.get(setting.name, setting.default), FILE if setting.name in stored else DEFAULT, None
    variable = VARIABLES.get(setting.name, "")
    if variable and os.environ.get(variable):
        value, source = setting.parse([os.environ[variable]]), ENVIRONMENT
    elif source == FILE:
        line = file.line_of(setting)
    shown = {
        "name": setting.name,
        "value": value,
        "source": source,
        "line": line,
        "default": setting.default,
        "about": setting.about,
    }
    return shown | ({"running": running[setting.name]} if setting.name in running else {})


def _print(shown: list[dict[str, Any]], data: DataFolder) -> None:
    rows = []
    for each in shown:
        source = each["source"]
        if source == FILE:
            source = f"corral.toml, line {each['line']}" if each.get("line") else "corral.toml"
        elif source == ENVIRONMENT:
            source = f"${VARIABLES[each['name']]}"
        row = {"SETTING": each["name"], "VALUE": _text(each["value"]), "FROM": source, "MEANING": each.get("about", "")}
        rows.append(row)
    print_table(rows, folded=("VALUE", "MEANING"), styles={"MEANING": lambda _: "dim"})
    other = [each for each in shown if each.get("running", each["value"]) != each["value"]]
    if other:
        values = ", ".join(f"{each['name']} = {_text(each['running'])}" for each in other)
        print_message(f"Corral runs with {values}. {_restart(data)}")


def _text(value: Any) -> str:
    """Return a value as the user writes it after `corral config set NAME`. An empty text is a pair of quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return shlex.join(map(_text, value)) or "[]"
    return '""' if value == "" else str(value)


def _remind(data: DataFolder, name: str) -> None:
    if name not in READ_BY_COMMANDS and data_folder.running(data) is not None:
        print_message(_restart(data))


def _restart(data: DataFolder) -> str:
    return f"The new values apply after a restart, which leaves tasks running: {restart_commands(data)}."
