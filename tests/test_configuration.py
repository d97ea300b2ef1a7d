"""corral.toml: what it may say, and how an error names the file, the line and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Cli
from corral.errors import Refused
from corral.model.instance import TypeMapping
from corral.model.settings import ScalingTimes
from corral.server.configuration import TIME_MAX_S, Configuration, read_configuration

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
    "scaling = 1\n": "line 1: scaling is not a table",
    "[scaling]\nbusy_wait = 1\n": "line 2: .scaling. has the unknown key 'busy_wait'",
    "[scaling]\nbusy_wait_s = -1\n": "line 2: busy_wait_s is -1, but it must be a number from 0 to 172800",
    "[scaling]\nbusy_wait_s = true\n": "line 2: busy_wait_s is True",
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


def test_the_wait_for_busy_tasks_is_read(tmp_path: Path) -> None:
    assert read_configuration(tmp_path).scaling.busy_wait_s == 900
    for given in (0, 0.5, TIME_MAX_S):
        (tmp_path / "corral.toml").write_text(f"{HEAD}\n[scaling]\nbusy_wait_s = {given}\n")
        assert read_configuration(tmp_path) == Configuration(scaling=ScalingTimes(busy_wait_s=given))


@pytest.mark.parametrize("content", WRONG)
def test_errors_name_the_line_and_the_key(tmp_path: Path, content: str) -> None:
    (tmp_path / "corral.toml").write_text(content)
    with pytest.raises(Refused, match=WRONG[content]) as caught:
        read_configuration(tmp_path)
    assert str(tmp_path / "corral.toml") in str(caught.value)


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
