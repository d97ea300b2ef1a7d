"""`corral up` remembers its options in corral.toml, and `corral config` shows and changes them."""

from __future__ import annotations

import json
import socket

from command import UNTIL_TOLD, Cli

MINE = "# the lab's machine\n[scaling]\nbusy_wait_s = 60  # short\n\n[up]  # options\nport = 0\n# two are enough\ngpus = 'sim:1'\n"


def shown(cli: Cli, *words: str) -> dict[str, tuple[object, str]]:
    return {each["name"]: (each["value"], each["source"]) for each in cli.json("config", *words)}


def test_up_remembers_its_options_and_keeps_the_comments_of_the_file(own: Cli) -> None:
    own.data.mkdir(mode=0o700)
    (own.data / "corral.toml").write_text(MINE)
    keys = ("--access-key", "AKIAEXAMPLE", "--secret-key", "not for files")
    started = own("up", "--detach", "--gpus", "sim:2", "--cluster", "lab", *keys)
    assert started.stderr.startswith(f"corral: options of {own.data / 'corral.toml'}: --port 0\n")
    assert (own.data / "corral.toml").read_text() == MINE.replace("'sim:1'", '"sim:2"') + 'cluster = "lab"\n'
    assert "corral.toml, line 9" in own("config").stdout
    task_id = own.start_task("--gpus", "1", "--", "sh", "-c", UNTIL_TOLD)

    assert own("config", "set", "run.notify", "true").stderr == "", "`corral run` reads it, so no restart is needed"
    own("config", "unset", "run.notify")
    own("config", "set", "up.gpus", "sim:3")
    changed = own("config")
    assert "Corral runs with up.gpus = sim:2" in changed.stderr and "`corral down --data" in changed.stderr
    own("down")
    again = own("up", "--detach", "--json")
    assert "--port 0 --gpus sim:3 --cluster lab" in again.stderr
    about = json.loads(again.stdout)
    assert (about["gpusFlag"], about["cluster"], about["options"]["gpus"]) == ("sim:3", "lab", "sim:3")
    assert own.json("ps")[0]["taskArn"].endswith(task_id)
    assert "not for files" not in (own.data / "corral.toml").read_text()


def test_a_refused_up_remembers_nothing(own: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        assert "cannot listen on" in own("up", "--detach", "--gpus", "none", "--port", port, code=1).stderr
        assert not own.data.exists()
        own.data.mkdir()
        assert "cannot listen on" in own("up", "--gpus", "none", "--port", port, code=1).stderr
    assert list(own.data.iterdir()) == []
    (own.data / "corral.toml").write_text("up = {port = 0}\n")
    assert "up.gpus cannot be stored" in own("up", "--detach", "--gpus", "none", code=1).stderr
    (own.data / "corral.toml").write_text("[up]\nport = 0\nruntime = 'process'\n")
    assert "cannot be used with --runtime process" in own("up", "--detach", "--isolate", code=2).stderr
    (own.data / "corral.toml").write_text("[up]\nport = -1\n")
    assert f"{own.data / 'corral.toml'}, line 2: port is -1, but" in own("up", "--detach", code=1).stderr
    assert [path.name for path in own.data.iterdir()] == ["corral.toml"]


def test_settings_are_shown_with_their_source_and_changed(own: Cli) -> None:
    assert own("config", "path").stdout == f"{own.data / 'corral.toml'}\n"
    assert {source for _, source in shown(own).values()} == {"default"}
    own("config", "set", "up.port", "4600")
    own("config", "set", "--data", str(own.data), "scaling.busy_wait_s", "60")
    assert (own.data / "corral.toml").read_text() == "[up]\nport = 4600\n\n[scaling]\nbusy_wait_s = 60\n"
    assert shown(own)["up.port"] == (4600, "file") and shown(own)["up.host"] == ("", "default")
    [port] = [each for each in json.loads(own("config", "--json", env={"CORRAL_PORT": "0"}).stdout) if each["name"] == "up.port"]
    assert (port["value"], port["source"], port["default"]) == (0, "environment", 4566)
    assert shown(own, "--data", str(own.home / "other"))["up.port"] == (4566, "default")
    table = own("config", env={"COLUMNS": "100"}).stdout
    assert max(map(len, table.splitlines())) <= 100
    assert "up.port" in table and "corral.toml, line 2" in table

    assert own("config", "set", "port", "1", code=1).stderr == "corral: there is no setting 'port'. Did you mean up.port?\n"
    assert (
        "up.port is 'many', but it must be a whole number from 0 to 65535" in own("config", "set", "up.port", "many", code=1).stderr
    )
    assert "takes one value, not 2" in own("config", "set", "up.port", "1", "2", code=2).stderr
    own("config", "unset", "up.port")
    assert "up.port is not set" in own("config", "unset", "up.port").stderr
    assert (own.data / "corral.toml").read_text() == "[up]\n\n[scaling]\nbusy_wait_s = 60\n"


def test_a_wrong_file_is_explained_and_can_be_mended(own: Cli) -> None:
    own.data.mkdir(mode=0o700)
    (own.data / "corral.toml").write_text("[up]\nport = 0\nprot = 4\n\n[instance-types]\np3.16xlarge = {gpus = 4}\n")
    wrong = own("config", code=1).stderr
    assert f"{own.data / 'corral.toml'}, line 3: [up] has the unknown key 'prot'. Use port, host, gpus" in wrong
    [found] = [each for each in own.json("doctor", code=1) if each["check"] == "configuration"]
    assert found["level"] == "failure" and "line 3" in found["found"]
    own("config", "unset", "up.prot")
    assert "p3" in own("config").stdout
    assert "by hand" in own("config", "set", "instance-types.p3.16xlarge", "{gpus = 2}", code=1).stderr
    (own.data / "corral.toml").write_text("[up\n")
    assert "is not valid TOML" in own("config", "set", "up.port", "1", code=1).stderr


def test_a_folder_of_another_program_is_refused(own: Cli) -> None:
    for name in ("notes.txt", "credentials.json", "node", "lock"):
        folder = own.home / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        for words in (("up", "--detach", "--port", "0", "--gpus", "none"), ("config", "set", "up.port", "0")):
            refused = own(*words, "--data", str(folder), code=1).stderr
            assert f"contains files that are not Corral's ({name})" in refused and "Choose an empty or a new folder" in refused
        assert {path.name: path.read_text() for path in folder.iterdir()} == {name: "mine"}
