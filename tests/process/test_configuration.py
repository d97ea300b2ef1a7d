"""corral.toml: what it may say, how an error names the file, the line and the key, and how settings are stored in it."""

from __future__ import annotations

import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from command import Cli
from corral.configuration.file import FILE_MAX_BYTES, ConfigurationError, find_setting, read_file, remove_setting, store_settings
from corral.configuration.settings import SETTINGS, TIME_MAX_S, UP_OPTIONS, defaults
from corral.core.errors import Refused
from corral.model.instance import TypeMapping
from corral.model.lender_settings import RaySettings, SlurmSettings
from corral.model.settings import HistorySettings, ScalingTimes
from corral.server.configuration import Configuration, read_configuration
from corral.server.startup import ServerOptions

HEAD = "# sizes on this machine\n[instance-types]\n"
WRONG = {  # content → what the error says
    "[instance-types\n": "not valid TOML: .*line 1",
    HEAD + "p3.16xlarge = {gpus = 4\n": "not valid TOML: .*line 3",
    "[instances]\nx = 1\n": "line 1: the table .instances. is unknown",
    "instance-types = 1\n": "line 1: instance-types is not a table",
    HEAD + "p3 = 4\n": "line 3: 'p3' is not an instance type",
    HEAD + "p3.16xlarge = 4\n": "line 3: p3.16xlarge needs a table",
    HEAD + "m5.large = {gpus = 1}\np3.16xlarge = {gpu = 4}\n": "line 4: p3.16xlarge has the unknown key 'gpu'",
    HEAD + "p3.16xlarge = {gpus = -1}\n": "line 3: gpus of p3.16xlarge is -1, but it must be a whole number from 0 to 1024",
    HEAD + "p3.16xlarge = {gpus = 1.5}\n": "gpus of p3.16xlarge is 1.5",
    HEAD + "p3.16xlarge = {gpus = true}\n": "gpus of p3.16xlarge is True",
    HEAD + "p3.16xlarge = {vcpus = 0}\n": "vcpus of p3.16xlarge is 0",
    HEAD + "p3.16xlarge = {memory_gib = 1e300}\n": "memory_gib of p3.16xlarge",
    HEAD + '"lab.large" = {gpus = 1}\n': "line 3: lab.large is not a type of AWS, so it also needs vcpus and memory_gib",
    HEAD + '"lab.large"."x" = {gpus = 1}\n': "line 3: lab.large has the unknown key 'x'",
    HEAD + "p3.16xlarge = {lenders = 'slurm'}\n": "lenders of p3.16xlarge is 'slurm', but it must be a list",
    HEAD + 'p3.16xlarge = {lenders = ["slurm"]}\n': "lenders of p3.16xlarge names 'slurm', but there is no table .lenders.slurm.",
    "lenders = 1\n": "line 1: lenders has a table for each lender",
    "[lenders]\nslurm = 1\n": "lenders has a table for each lender",
    "[lenders.Local]\n": "'Local' is not valid as the name of a lender",
    "[lenders.local]\n": "'local' is not valid as the name of a lender",
    "[lenders.slurm]\nkind = 'lsf'\n": "line 1: kind of .lenders.slurm. is 'lsf', but it must be slurm or ray",
    "[lenders.r]\nkind = 'ray'\npartition = 'x'\n": "line 1: .lenders.r. is not valid: .*partition",
    "[lenders.r]\nkind = 'ray'\ndashboard = 'head:8265'\n": "line 3: dashboard of .lenders.r. is 'head:8265', but it must be http",
    "[lenders.slurm]\nqueue = 'gpu'\n": "line 1: .lenders.slurm. is not valid: .*queue",
    "[lenders.slurm]\nallow = {user = ['root']}\n": "line 2: allow of .lenders.slurm. has the unknown key 'user'",
    "[lenders.slurm]\npoll_s = 0\n": "line 2: poll_s is 0, but it must be from 0.1 to 300 seconds",
    "scaling = 1\n": "line 1: scaling is not a table",
    "[scaling]\nbusy_wait = 1\n": "line 2: .scaling. has the unknown key 'busy_wait'",
    "[scaling]\nbusy_wait_s = -1\n": "line 2: busy_wait_s is -1, but it must be a number from 0 to 172800",
    "[scaling]\nbusy_wait_s = true\n": "line 2: busy_wait_s is True",
    "[scaling]\n[up]\nport = 70000\n": "line 3: port is 70000, but it must be a whole number from 0 to 65535",
    "[up]\nport = true\n": "line 2: port is True",
    "[up]\n'port' = '1'\n": "line 2: port is '1'",
    "up.port = 4566\nup.gpus = 'many'\n": "line 2: gpus is 'many', but it must be auto, none, or 1 to 64 simulated GPUs",
    "[up]\nisolate = 1\n": "line 2: isolate is 1, but it must be true or false",
    "[up]\nruntime = 'podman'\n": "line 2: runtime is 'podman', but it must be one of auto, process, docker",
    "[up]\naccount = 123456789012\n": "line 2: account is 123456789012, but it must be a text of twelve digits",
    "# port\n[up]\nsecret_key = 'x'\n": "line 3: .up. has the unknown key 'secret_key'. Use port, host, gpus",
    "up = 4566\n": "line 1: up is not a table",
    "[history]\ndays = -1\n": "line 2: days is -1, but it must be a number from 0 to 3650",
    "[history]\ntasks = 0.5\n": "line 2: tasks is 0.5, but it must be a whole number from 0 to 100000000",
}


def test_types_are_read(tmp_path: Path) -> None:
    assert read_configuration(tmp_path) == Configuration()
    (tmp_path / "corral.toml").write_text(
        HEAD + 'p3.16xlarge = {gpus = 4}\n"m5.large" = {memory_gib = 0.5}\n'
        "[instance-types.lab.large]\ngpus = 1\nvcpus = 2\nmemory_gib = 8\n"
    )
    assert read_configuration(tmp_path).instance_types == {
        "p3.16xlarge": TypeMapping(gpus=4),
        "m5.large": TypeMapping(memory_gib=0.5),
        "lab.large": TypeMapping(1, 2, 8.0),
    }
    (tmp_path / "corral.toml").write_text("")
    assert read_configuration(tmp_path) == Configuration()


def test_lenders_are_read(tmp_path: Path) -> None:
    (tmp_path / "corral.toml").write_text(
        '[lenders.slurm]\npartition = "gpu"\nallow = {qos = ["low"]}\n' + HEAD + 'p3.16xlarge = {lenders = ["slurm", "local"]}\n'
    )
    found = read_configuration(tmp_path)
    assert found.lenders == {"slurm": SlurmSettings(partition="gpu", allow={"qos": ["low"]})}
    assert found.instance_types == {"p3.16xlarge": TypeMapping(lenders=("slurm", "local"))}
    (tmp_path / "corral.toml").write_text('[lenders.r]\nkind = "ray"\ndashboard = "http://head:8265"\nresources = {lab = 1}\n')
    assert read_configuration(tmp_path).lenders == {
        "r": RaySettings(kind="ray", dashboard="http://head:8265", resources={"lab": 1.0})
    }


def test_the_wait_for_busy_tasks_is_read(tmp_path: Path) -> None:
    assert read_configuration(tmp_path).scaling.busy_wait_s == 900
    for given in (0, 0.5, TIME_MAX_S):
        (tmp_path / "corral.toml").write_text(f"{HEAD}\n[scaling]\nbusy_wait_s = {given}\n")
        assert read_configuration(tmp_path).scaling == ScalingTimes(busy_wait_s=given)


def test_the_days_of_the_history_are_read(tmp_path: Path) -> None:
    assert read_configuration(tmp_path).history == HistorySettings(days=30.0, tasks=1_000_000)
    (tmp_path / "corral.toml").write_text("[history]\ndays = 0.5\ntasks = 7\n")
    assert read_configuration(tmp_path).history == HistorySettings(days=0.5, tasks=7)


@pytest.mark.parametrize("content", WRONG)
def test_errors_name_the_line_and_the_key(tmp_path: Path, content: str) -> None:
    (tmp_path / "corral.toml").write_text(content)
    with pytest.raises(Refused, match=WRONG[content]) as caught:
        read_configuration(tmp_path)
    assert str(tmp_path / "corral.toml") in str(caught.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corral.toml").write_text("#" * (FILE_MAX_BYTES + 1))
    with pytest.raises(ConfigurationError, match=f"corral.toml has more than {FILE_MAX_BYTES} bytes"):
        read_file(tmp_path)


def test_up_refuses_a_wrong_file_and_changes_nothing(own: Cli) -> None:
    own.data.mkdir(mode=0o700)
    (own.data / "corral.toml").write_text(HEAD + "p3.16xlarge = {gpus = many}\n")
    refused = own("up", "--detach", "--gpus", "none", "--port", "0", code=1).stderr
    assert "corral.toml is not valid TOML" in refused and "line 3" in refused
    assert [path.name for path in own.data.iterdir()] == ["corral.toml"]


def test_the_file_is_part_of_a_backup(own: Cli, tmp_path: Path) -> None:
    own("up", "--detach", "--gpus", "none", "--port", "0")
    (own.data / "corral.toml").write_text(HEAD + "p3.16xlarge = {gpus = 4}\n")
    own("backup", str(tmp_path / "saved"))
    own("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "restored"))
    assert read_configuration(tmp_path / "restored").instance_types == {"p3.16xlarge": TypeMapping(gpus=4)}


def test_the_options_of_up_have_one_default(tmp_path: Path) -> None:
    server = ServerOptions(data="/data")
    assert {name: setting.default for name, setting in UP_OPTIONS.items()} == {name: getattr(server, name) for name in UP_OPTIONS}
    assert not {"access_key", "secret_key", "discard_blobs"} & set(UP_OPTIONS)
    assert [setting.name for setting in SETTINGS.values() if setting.problem(setting.default)] == []


def test_settings_are_stored_and_removed(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    assert remove_setting(data, "up", "port") is False and not data.exists()
    store_settings(data, {"up.port": 4600, "up.gpus": "sim:2", "scaling.busy_wait_s": 5})
    path = data / "corral.toml"
    assert path.read_text() == '[up]\nport = 4600\ngpus = "sim:2"\n\n[scaling]\nbusy_wait_s = 5\n'
    assert (data.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert read_configuration(data).values == defaults() | {"up.port": 4600, "up.gpus": "sim:2", "scaling.busy_wait_s": 5}
    assert remove_setting(data, "up", "port") is True
    assert remove_setting(data, "up", "port") is False
    assert path.read_text() == '[up]\ngpus = "sim:2"\n\n[scaling]\nbusy_wait_s = 5\n'
    assert [each.name for each in data.iterdir()] == ["corral.toml"]


def test_a_refused_value_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^up\.port is 99999, but it must be a whole number from 0 to 65535\.$"):
        store_settings(tmp_path, {"up.gpus": "none", "up.port": 99_999})
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "corral.toml"
    path.write_text("up = {port = 1}\n")
    with pytest.raises(ConfigurationError, match=r"corral.toml, line 1: up.gpus cannot be stored: .*\[up\] on a line"):
        store_settings(tmp_path, {"up.gpus": "none"})
    assert path.read_text() == "up = {port = 1}\n" and read_file(tmp_path).values()["up.port"] == 1
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"contains files that are not Corral's \(notes.txt\)"):
        store_settings(tmp_path, {"up.gpus": "none"})


def test_a_file_that_is_removed_during_the_check_of_the_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.process.data_folder._own_paths", lambda data: [data / "corral.toml.new"])
    store_settings(tmp_path, {"scaling.busy_wait_s": 7})
    assert tomllib.loads((tmp_path / "corral.toml").read_text()) == {"scaling": {"busy_wait_s": 7}}


def test_stores_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [name for name in SETTINGS if name.startswith("scaling.")]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: store_settings(tmp_path, {name: 7}), names))
    assert {name: read_file(tmp_path).values()[name] for name in names} == dict.fromkeys(names, 7)


def test_words_of_the_command_line_become_values() -> None:
    def parsed(name: str, *words: str) -> object:
        return find_setting(name).parse(words)

    assert (parsed("up.port", "80"), parsed("up.isolate", "True"), parsed("up.account", "000000000001")) == (
        80,
        True,
        "000000000001",
    )
    assert (parsed("run.notify", "desktop", "echo a b"), parsed("run.notify", "[]")) == (["desktop", "echo a b"], [])
    assert (parsed("scaling.busy_wait_s", "0.5"), parsed("up.port", "1_0"), parsed("up.isolate", "yes")) == (0.5, "1_0", "yes")
    wrong = {
        "port": r"up\.port\?", "up.exclude-gpus": r"up\.exclude_gpus\?", "up.prot": "up.port", "x": "corral config",
        "instance-types.p3.2xlarge": "by hand",
    }  # fmt: skip
    for name, advice in wrong.items():
        with pytest.raises(ConfigurationError, match=f"there is no setting '{name}'.*{advice}"):
            find_setting(name)
