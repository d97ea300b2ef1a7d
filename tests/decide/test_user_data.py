"""User data: which settings of the ECS agent are found, in every form in which people write them."""

from __future__ import annotations

from base64 import b64encode
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from gzip import compress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.user_data import AgentSettings, read_user_data

CONFIG = "/etc/ecs/ecs.config"
SCRIPTS: dict[str, tuple[str, str]] = {  # the lines of a script → the cluster
    "the seed's line": (
        "echo ECS_CLUSTER=gpu-example-cluster >> /etc/ecs/ecs.config;echo ECS_BACKEND_HOST= >> /etc/ecs/ecs.config;",
        "gpu-example-cluster",
    ),
    "double quotes": (f'echo "ECS_CLUSTER=a" >> {CONFIG}', "a"),
    "single quotes": (f"echo 'ECS_CLUSTER=a' > {CONFIG}", "a"),
    "a quoted value": (f"echo ECS_CLUSTER='a-b' >> {CONFIG}", "a-b"),
    "a quoted target": (f'echo ECS_CLUSTER=a >> "{CONFIG}"', "a"),
    "no blanks": (f"echo ECS_CLUSTER=a>>{CONFIG}", "a"),
    "the last one counts": (f"echo ECS_CLUSTER=a >> {CONFIG}\necho ECS_CLUSTER=b >> {CONFIG}", "b"),
    "a comment": (f"# echo ECS_CLUSTER=a >> {CONFIG}\ntrue # echo ECS_CLUSTER=b >> {CONFIG}", ""),
    "a number sign in a word": (f"echo a#b; echo ECS_CLUSTER=a >> {CONFIG}", "a"),
    "a heredoc": (f"cat <<EOF >> {CONFIG}\nECS_CLUSTER=a\nECS_LOGLEVEL=debug\nEOF", "a"),
    "a heredoc after its target": (f"cat > {CONFIG} <<'END'\nECS_CLUSTER=a\nEND\necho ECS_CLUSTER=b > /tmp/x", "a"),
    "a heredoc with tabs": (f"cat <<-EOF >> {CONFIG}\n\tECS_CLUSTER=a\n\tEOF", "a"),
    "a heredoc of another file": ("cat <<EOF > /etc/other\nECS_CLUSTER=a\nEOF", ""),
    "a command after a heredoc": (f"cat <<EOF > /etc/other\nx\nEOF\necho ECS_CLUSTER=a >> {CONFIG}", "a"),
    "an unfinished heredoc": (f"cat <<EOF >> {CONFIG}\nECS_CLUSTER=a", "a"),
    "tee": (f"echo ECS_CLUSTER=a | sudo tee -a {CONFIG}", "a"),
    "tee with a heredoc": (f"sudo tee {CONFIG} <<EOF\nECS_CLUSTER=a\nEOF", "a"),
    "a heredoc through a pipe": (f"cat <<EOF | tee -a {CONFIG} > /dev/null\nECS_CLUSTER=a\nEOF\nls", "a"),
    "a here-string": (f'cat <<< "ECS_CLUSTER=a" >> {CONFIG}', "a"),
    "printf": (f"printf 'ECS_CLUSTER=%s\\n' a >> {CONFIG}", "a"),
    "echo -e": (f'echo -e "ECS_LOGLEVEL=info\\nECS_CLUSTER=a" >> {CONFIG}', "a"),
    "a variable": (f'NAME=a\necho "ECS_CLUSTER=$NAME" >> {CONFIG}', "a"),
    "a variable in braces": (f"export NAME=a; echo ECS_CLUSTER=${{NAME}}-b >> {CONFIG}", "a-b"),
    "a variable in a heredoc": (f"NAME=a\ncat <<EOF >> {CONFIG}\nECS_CLUSTER=${{NAME}}\nEOF", "a"),
    "no variables in a quoted heredoc": (f"NAME=a\ncat <<'EOF' >> {CONFIG}\nECS_CLUSTER=$NAME\nEOF", ""),
    "a variable that only the machine knows": (f"echo ECS_CLUSTER=$(hostname) >> {CONFIG}", ""),
    "a continued line": (f"echo ECS_CLUSTER=a \\\n  >> {CONFIG}", "a"),
    "a string over two lines": (f'echo "ECS_LOGLEVEL=info\nECS_CLUSTER=a" >> {CONFIG}', "a"),
    "a condition": (f"if true; then echo ECS_CLUSTER=a >> {CONFIG}; fi", "a"),
    "a group": (f"yum update -y && {{ echo ECS_CLUSTER=a >> {CONFIG}; }}", "a"),
    "a subshell": (f"(echo ECS_CLUSTER=a >> {CONFIG})", "a"),
    "errors to a file": (f"echo ECS_CLUSTER=a 2> /dev/null >> {CONFIG}", "a"),
    "a number before a redirection": (f"printf 'ECS_CLUSTER=a%s' 1 >> {CONFIG}", "a1"),
    "another file": ("echo ECS_CLUSTER=a >> /etc/ecs/other.config", ""),
    "no redirection": ("echo ECS_CLUSTER=a", ""),
    "a name that ECS refuses": (f"echo 'ECS_CLUSTER=a b' >> {CONFIG}", ""),
    "Windows line ends": (f"echo ECS_CLUSTER=a >> {CONFIG}\r\nls\r\n", "a"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    lines, cluster = SCRIPTS[name]
    assert read_user_data(f"#!/bin/bash -xe\n{lines}\n".encode()).cluster == cluster


def test_understood_and_skipped_lines() -> None:
    script = f"""#!/bin/bash
yum install -y aws-cfn-bootstrap
cat <<'EOF' >> {CONFIG}
ECS_CLUSTER=train
ECS_ENABLE_GPU_SUPPORT=true
ECS_INSTANCE_ATTRIBUTES={{"gpu": "v100", "rack": ""}}
ECS_LOGLEVEL=debug
EOF
start ecs
"""
    found = read_user_data(script.encode())
    assert found == AgentSettings(
        cluster="train",
        attributes={"gpu": "v100", "rack": ""},
        gpu_support=True,
        understood=(
            "ECS_CLUSTER=train",
            "ECS_ENABLE_GPU_SUPPORT=true",
            'ECS_INSTANCE_ATTRIBUTES={"gpu": "v100", "rack": ""}',
            f"cat <<'EOF' >> {CONFIG}",
        ),
        skipped=("ECS_LOGLEVEL=debug", "yum install -y aws-cfn-bootstrap", "start ecs"),
    )


@pytest.mark.parametrize(
    "value", ["[]", "{", '{"a": 1}', '{"a b": "x"}', '{"a": " x"}', "1" * 5000, "[" * 5000, '{"ecs.os-type": "x"}']
)
def test_attributes_that_ecs_refuses_are_skipped(value: str) -> None:
    found = read_user_data(f"#!/bin/sh\necho 'ECS_INSTANCE_ATTRIBUTES={value}' >> {CONFIG}".encode())
    assert found.attributes == {} and f"ECS_INSTANCE_ATTRIBUTES={value}" in found.skipped


def test_text_without_an_interpreter_is_not_run() -> None:
    found = read_user_data(f"echo ECS_CLUSTER=a >> {CONFIG}".encode())
    assert found.cluster == "" and len(found.skipped) == 1


def archive(*parts: tuple[str, str]) -> bytes:
    message = MIMEMultipart(boundary="==BOUNDARY==")
    for kind, text in parts:
        message.attach(MIMEText(text, kind, "utf-8"))  # in base64
    return message.as_bytes()


def test_user_data_that_was_encoded_twice() -> None:
    """boto3 encodes the user data of RunInstances and CreateLaunchConfiguration, and many callers encode it before."""
    script = f"#!/bin/bash\necho ECS_CLUSTER=a >> {CONFIG}\n".encode()
    for data in (script, compress(script), f"#cloud-config\nbootcmd:\n- echo ECS_CLUSTER=a >> {CONFIG}\n".encode()):
        settings = read_user_data(b64encode(data) + b"\n")
        assert settings.cluster == "a"
        assert settings.understood[0] == "(user data that is encoded in base64 twice)"
    broken = read_user_data(b"IyEvYm==*")
    assert (broken.cluster, broken.understood, broken.skipped) == ("", (), ("IyEvYm==*",))


def test_mime_archives() -> None:
    parts = (("cloud-config", "packages: [jq]\n"), ("x-shellscript", f"#!/bin/sh\necho ECS_CLUSTER=a >> {CONFIG}\n"))
    found = read_user_data(archive(*parts))
    assert found.cluster == "a" and found.skipped == ("packages:",)
    plain = (
        'Content-Type: multipart/mixed; boundary="//"\nMIME-Version: 1.0\n\n--//\n'
        'Content-Type: text/x-shellscript; charset="us-ascii"'
        f"\nContent-Transfer-Encoding: 7bit\n\n#!/bin/bash\necho ECS_CLUSTER=b >> {CONFIG}\n--//--\n"
    )
    assert read_user_data(plain.encode()).cluster == "b"
    assert read_user_data(compress(plain.encode())).cluster == "b"


def test_cloud_config() -> None:
    encoded = b64encode(b"ECS_CLUSTER=b\n").decode()
    document = f"""#cloud-config
repo_update: true
write_files:
  - path: {CONFIG}
    content: |
      ECS_CLUSTER=a
      ECS_INSTANCE_ATTRIBUTES={{"x":"y"}}
  - path: /etc/motd
    content: hello
"""
    found = read_user_data(document.encode())
    assert (found.cluster, found.attributes) == ("a", {"x": "y"})
    assert found.skipped == ("repo_update:", "write_files: /etc/motd")
    file = f"#cloud-config\nwrite_files:\n- {{path: {CONFIG}, encoding: b64, content: {encoded}}}\n"
    assert read_user_data(file.encode()).cluster == "b"
    for command in (f"echo ECS_CLUSTER=c >> {CONFIG}", f"[sh, -c, 'echo ECS_CLUSTER=c >> {CONFIG}']"):
        assert read_user_data(f"#cloud-config\nruncmd:\n- {command}\n".encode()).cluster == "c"
    for broken in ("#cloud-config\n- [", "#cloud-config\n" + "[" * 8000, "#cloud-config\n" + "- " * 8000 + "x"):
        assert read_user_data(broken.encode()).cluster == ""


def test_bottlerocket() -> None:
    settings = '[settings.ecs]\ncluster = "a"\nloglevel = "debug"\n[settings.ecs.instance-attributes]\nstack = "prod"\n'
    found = read_user_data(settings.encode())
    assert (found.cluster, found.attributes, found.skipped) == ("a", {"stack": "prod"}, ("settings.ecs.loglevel",))


INIT: dict[str, Any] = {
    "AWS::CloudFormation::Init": {
        "configSets": {"default": ["install", "ecs"]},
        "install": {"packages": {"yum": {"jq": []}}},
        "ecs": {
            "files": {
                "/etc/cfn/cfn-hup.conf": {"content": "[main]\n", "mode": "000400"},
                CONFIG: {"content": "ECS_CLUSTER=stack-cluster\nECS_ENABLE_GPU_SUPPORT=true\n"},
            },
            "commands": {
                "01_attributes": {"command": f'echo \'ECS_INSTANCE_ATTRIBUTES={{"tier":"gpu"}}\' >> {CONFIG}'},
                "02_start": {"command": ["systemctl", "start", "ecs"]},
                "03_lines": {"command": f"#!/bin/bash\necho ECS_RESERVED_MEMORY=64 >> {CONFIG}\n"},
            },
        },
    }
}


def test_cloudformation_init() -> None:
    script = b"#!/bin/bash -xe\n/opt/aws/bin/cfn-init -v --stack s --resource Launch --region us-east-1\ncfn-signal -e $?\n"
    found = read_user_data(script, INIT)
    assert (found.cluster, found.attributes, found.gpu_support) == ("stack-cluster", {"tier": "gpu"}, True)
    assert f"ecs: {CONFIG}" in found.understood and any("cfn-init" in line for line in found.understood)
    assert {"ecs: /etc/cfn/cfn-hup.conf", "install: packages", "systemctl start ecs", "ECS_RESERVED_MEMORY=64"} <= set(
        found.skipped
    )
    assert read_user_data(b"#!/bin/bash\necho hello\n", INIT).cluster == "", "a script that does not call cfn-init gets no files"
    assert read_user_data(script).cluster == ""


@given(st.binary(max_size=400), st.sampled_from([b"", b"#!/bin/sh\n", b"#cloud-config\n", b"MIME-Version: 1.0\n", b"\x1f\x8b"]))
def test_any_bytes_are_read(data: bytes, start: bytes) -> None:
    found = read_user_data(start + data)
    assert isinstance(found.cluster, str)


SHELL = st.lists(
    st.sampled_from(
        ["echo ", "ECS_CLUSTER=", "a", "'", '"', "\\", "$X", "${X}", "$(", ")", "(", ";", "\n", "&&", "|", ">>", ">", "<<EOF",
         "<<-E", "EOF\n", "E\n", CONFIG, "#", " ", "tee ", "cat ", "X=b", "printf %s ", "2>", "{ ", "}"]
    ),
    max_size=40,
)  # fmt: skip


@given(SHELL)
def test_any_script_is_read(parts: list[str]) -> None:
    text = "".join(parts)
    found = read_user_data(b"#!/bin/sh\n" + text.encode())
    assert found.cluster in ("", found.cluster.strip())
    assert all(line for line in (*found.understood, *found.skipped))


def test_a_large_script_is_read_once() -> None:
    """The reader is linear: these would take minutes if it were not."""
    for part in ("echo '", 'echo "', "cat <<E\n", "cat <<E | x\n", "$(", "a=b;", "\\\n", "((", "`"):
        read_user_data(b"#!/bin/sh\n" + (part * (16_000 // len(part))).encode())


@pytest.mark.parametrize(
    "script",
    [
        "A=12345678\n" + "A=$A$A\n" * 60,
        "A=12345678\n" + 'A="${A}${A}"\n' * 60,
        "A=12345678\n" + "A=$A$A$A$A\n" * 7 + f"printf '%s'$A {'a ' * 5000} > {CONFIG}",
        "A=12345678\n" + "A=$A$A\n" * 20 + f"cat <<EOF > {CONFIG}\n{'$A' * 5000}\nEOF",
    ],
)
def test_values_of_variables_do_not_grow_without_limit(script: str) -> None:
    found = read_user_data(f"#!/bin/bash\necho ECS_CLUSTER=a > {CONFIG}\n{script}\n".encode())
    assert found.cluster == "a" and sum(map(len, (*found.understood, *found.skipped))) < 1_000_000


def test_a_text_is_not_written_without_limit() -> None:
    script = f"echo ECS_CLUSTER=a > {CONFIG}\ncat <<EOF | {f'tee {CONFIG} | ' * 400} cat\n{'b' * 50}\n" + "\n".join("c" * 4000)
    found = read_user_data(f"#!/bin/bash\n{script}".encode())
    assert found.cluster == "a" and len(found.skipped) < 300_000


def _doubled(first: str, next_: str, levels: int) -> str:
    lines = [f"a0: &a0 {first}", *(f"a{at}: &a{at} " + next_.replace("X", f"*a{at - 1}") for at in range(1, levels))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "document",
    [
        _doubled("{x: 1}", "{<<: [X, X]}", 60),
        _doubled("[x]", "[X, X]", 60) + "\nruncmd: [[sh, -c, *a59]]",
        _doubled("[x]", "[X]", 500) + "\nruncmd: [[sh, -c, *a499]]",  # too many levels
        f"a: &a {'x' * 8000}\nruncmd: [{'*a, ' * 2000}]",
        "runcmd: &a [*a]",
    ],
)
def test_aliases_do_not_multiply_a_document_without_limit(document: str) -> None:
    found = read_user_data(f"#cloud-config\n{document}\nbootcmd: ['echo ECS_CLUSTER=a > {CONFIG}']\n".encode())
    assert found.cluster == "" and "bootcmd:" in found.skipped[-1]


def test_a_few_aliases_are_read() -> None:
    document = f"#cloud-config\nx: &x {{path: {CONFIG}}}\nwrite_files:\n- <<: *x\n  content: ECS_CLUSTER=a\n"
    assert read_user_data(document.encode()).cluster == "a"


def test_archives_inside_of_archives() -> None:
    levels = "".join(f'Content-Type: multipart/mixed; boundary="b{at}"\n\n--b{at}\n' for at in range(1000))
    assert read_user_data(f"MIME-Version: 1.0\n{levels}".encode()).cluster == ""
