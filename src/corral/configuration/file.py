"""Reads, checks and changes corral.toml. Errors name the file, the line, the value and the rule."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corral.configuration.settings import HAND_WRITTEN, SETTINGS, TABLES, ConfigurationSetting, defaults
from corral.configuration.toml_edit import UnchangeableToml, key_line, parse_toml, set_value, unset_value
from corral.core.errors import Refused
from corral.process.data_folder import CONFIGURATION, CONFIGURATION_NEW, validate_folder

FILE_MAX_BYTES = 1024 * 1024


class ConfigurationError(Refused):
    """corral.toml, or a change of it, is not valid."""


class ConfigurationFile:
    """The text and the content of corral.toml. A file that does not exist is empty."""

    def __init__(self, path: Path, text: str, document: dict[str, Any]) -> None:
        self.path = path
        self.text = text
        self.document = document

    def stored(self) -> dict[str, Any]:
        """Return the settings of the file by name. Raise a ConfigurationError if a table, a key or a value is not valid."""
        found: dict[str, Any] = {}
        for table, content in self.document.items():
            if table not in TABLES:
                tables = ", ".join(f"[{known}]" for known in TABLES)
                raise self.error(table, f"the table [{table}] is unknown. Corral reads {tables}")
            if table in HAND_WRITTEN:
                continue
            known = [setting.key for setting in SETTINGS.values() if setting.table == table]
            if not isinstance(content, dict):
                raise self.error(table, f"{table} is not a table. Write [{table}], and below it a line such as {known[0]} = …")
            for key, value in content.items():
                setting = SETTINGS.get(f"{table}.{key}")
                if setting is None:
                    raise self.error(key, f"[{table}] has the unknown key '{key}'. Use {', '.join(known)}", table)
                if problem := setting.problem(value):
                    raise self.error(key, problem, table)
                found[setting.name] = value
        return found

    def values(self) -> dict[str, Any]:
        """Return all settings by name, with defaults for those that the file does not have."""
        return defaults() | self.stored()

    def line_of(self, setting: ConfigurationSetting) -> int | None:
        return key_line(self.text, setting.table, setting.key)

    def error(self, key: str, problem: str, table: str | None = None) -> ConfigurationError:
        """Return an error that names the line of a key, if the line can be found."""
        number = key_line(self.text, table, key) if table else None
        plain = [line.replace('"', "").replace("'", "") for line in self.text.splitlines()]
        for wanted in () if number else (key, key.rpartition(".")[2]):
            pattern = re.compile(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])")
            number = number or next((at for at, line in enumerate(plain, 1) if pattern.search(line.partition("#")[0])), None)
        return ConfigurationError(f"{self.path}{f', line {number}' if number else ''}: {problem}.")


def read_file(folder: Path) -> ConfigurationFile:
    """Read corral.toml of a data folder. Only the syntax is checked: `stored` and `values` check the settings."""
    path = folder / CONFIGURATION
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ConfigurationFile(path, "", {})
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > FILE_MAX_BYTES:
        raise ConfigurationError(f"{path} has more than {FILE_MAX_BYTES} bytes. Shorten or delete it.")
    try:
        text = content.decode()
        return ConfigurationFile(path, text, parse_toml(text))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}. Correct or delete it.") from None


def find_setting(name: str) -> ConfigurationSetting:
    """Return a setting by its name. The error suggests similar names."""
    if name in SETTINGS:
        return SETTINGS[name]
    from difflib import get_close_matches  # imported here, because the server rarely needs it, and it takes memory

    wanted = name.replace("-", "_")
    similar = [known for known in SETTINGS if wanted in (known, known.partition(".")[2])] or get_close_matches(wanted, SETTINGS, 3)
    advice = f"Did you mean {' or '.join(similar)}?" if similar else "`corral config` lists all settings."
    if (table := name.partition(".")[0]) in HAND_WRITTEN:
        advice = f"Edit [{table}] by hand: `corral config path` prints the path of the file."
    raise ConfigurationError(f"there is no setting '{name}'. {advice}")


def with_settings(file: ConfigurationFile, values: Mapping[str, Any]) -> str:
    """Return the text of the file with these settings. Change nothing."""
    text = file.text
    for name, value in values.items():
        setting = SETTINGS[name]
        try:
            text = set_value(text, setting.table, setting.key, value)
        except UnchangeableToml as error:
            raise file.error(setting.table, f"{name} cannot be stored: {error}") from None
    return text


def store_settings(folder: Path, values: Mapping[str, Any]) -> None:
    """Store settings in corral.toml. The folder is created if it does not exist, and refused if it is not Corral's."""
    for name, value in values.items():
        if problem := SETTINGS[name].problem(value):
            raise ConfigurationError(f"{SETTINGS[name].table}.{problem}.")
    _validate(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _changing(folder):
        file = read_file(folder)
        _replace(folder, file, with_settings(file, values))


def remove_setting(folder: Path, table: str, key: str) -> bool:
    """Remove a setting from corral.toml. Return whether the file had it."""
    if not (folder / CONFIGURATION).exists():
        return False
    _validate(folder)
    with _changing(folder):
        file = read_file(folder)
        try:
            text = unset_value(file.text, table, key)
        except UnchangeableToml as error:
            raise file.error(key, f"{table}.{key} cannot be removed: {error}", table) from None
        _replace(folder, file, text)
    return text != file.text


def _validate(folder: Path) -> None:
    try:
        validate_folder(folder)
    except Refused as refusal:
        raise ConfigurationError(str(refusal)) from None


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Wait until no other process changes the file, and keep others from changing it. The folder itself is locked."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(folder: Path, file: ConfigurationFile, text: str) -> None:
    """Replace the file atomically: readers see either the old or the new text, also after a crash."""
    if text == file.text:
        return
    fresh = folder / CONFIGURATION_NEW
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())
    fresh.rename(file.path)
