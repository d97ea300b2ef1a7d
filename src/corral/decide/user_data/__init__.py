"""Reads the settings of the ECS agent from the user data of an instance, without executing it.

User data is a shell script, a `#cloud-config` document, a MIME archive of these, or Bottlerocket's settings. If a script calls
`cfn-init`, the files and commands of `AWS::CloudFormation::Init` are read too. Apart from Bottlerocket's settings, only settings
that are written to `/etc/ecs/ecs.config` have an effect.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from corral.decide.user_data.shell import Script, read_script
from corral.model.json_documents import read_json

CONFIG_FILE = "/etc/ecs/ecs.config"
UNPACKED_MAX_BYTES = 64 * 1024
WRITTEN_MAX = 256 * 1024  # all writes to the file of the ECS agent together can have this many characters; later ones are skipped
NESTING_MAX = 64  # the most levels of a YAML document
ATTRIBUTES_MAX = 10
INIT = "AWS::CloudFormation::Init"
CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,255}")
ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.\\/-]{1,128}")
ATTRIBUTE_VALUE = re.compile(r"(?! )[a-zA-Z0-9_.@/\\: -]{0,128}(?<! )|")
BUILT_IN_PREFIXES = ("ecs.", "com.amazonaws.", "corral.")  # user data cannot set attributes with these prefixes
# The beginnings of scripts, `#cloud-` documents, MIME archives and compressed data, in base64.
ENCODED_TWICE = re.compile(rb"\s*(?:IyEv|I2Nsb3Vk|TUlNRS1WZXJzaW9u|Q29udGVudC1UeXBl|H4sI)")
TRUE, FALSE = ("true", "1", "t"), ("false", "0", "f")


class AgentSettings(Struct, frozen=True):
    """The settings of an ECS agent. `understood` has the lines of user data that had an effect, `skipped` the others."""

    cluster: str = ""  # ECS_CLUSTER, or empty if it is not set
    attributes: dict[str, str] = field(default_factory=dict)  # ECS_INSTANCE_ATTRIBUTES
    gpu_support: bool | None = None  # ECS_ENABLE_GPU_SUPPORT
    understood: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def read_user_data(data: bytes, init: Mapping[str, Any] | None = None) -> AgentSettings:
    """Read user data. `init` is the metadata of the CloudFormation resource that created the instance."""
    reader = _UserDataReader(init)
    reader.read(data)
    return AgentSettings(
        cluster=reader.cluster,
        attributes=reader.attributes,
        gpu_support=reader.gpu_support,
        understood=tuple(reader.understood),
        skipped=tuple(reader.skipped),
    )


class _UserDataReader:
    def __init__(self, init: Mapping[str, Any] | None) -> None:
        self.init = init
        self.written = 0
        self.cluster = ""
        self.attributes: dict[str, str] = {}
        self.gpu_support: bool | None = None
        self.understood: list[str] = []
        self.skipped: list[str] = []

    def read(self, data: bytes) -> None:
        data = self._decoded(data)
        if data[:2] == b"\x1f\x8b":
            try:
                data = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, UNPACKED_MAX_BYTES)
            except zlib.error:
                self.skipped.append("(compressed data that cannot be read)")
                return
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        if re.match(r"(content-type:\s*multipart|mime-version:)", text.lstrip(), re.IGNORECASE):
            self._archive(text.lstrip())
        else:
            self._part(text)

    def _decoded(self, data: bytes) -> bytes:
        """Decode user data that was encoded twice.

        boto3 encodes the user data of RunInstances and CreateLaunchConfiguration, and many callers encode it, too.
        """
        if not ENCODED_TWICE.match(data):
            return data
        try:
            decoded = b64decode(b"".join(data.split()), validate=True)
        except ValueError:
            return data
        self.understood.append("(user data that is encoded in base64 twice)")
        return decoded

    def _archive(self, text: str) -> None:
        from email.parser import Parser  # imported only here, because most user data is a script

        try:
            parts = list(Parser().parsestr(text).walk())
        except RecursionError:  # archives inside of archives
            self.skipped += _lines(text)
            return
        for part in parts:
            if not part.is_multipart():
                payload = part.get_payload(decode=True)
                if isinstance(payload, bytes):
                    kind = part.get_content_type()
                    self._part(payload.decode("utf-8", "replace").replace("\r\n", "\n"), kind)

    def _part(self, text: str, kind: str = "") -> None:
        first = text.lstrip().split("\n", 1)[0].strip()
        if kind == "text/cloud-config" or first.startswith("#cloud-config"):
            self._cloud_config(text)
        elif first.startswith(("#!", "#cloud-boothook")) or kind in ("text/x-shellscript", "text/cloud-boothook"):
            self._script(text)
        elif "[settings.ecs]" in text:
            self._bottlerocket(text)
        else:
            self.skipped += _lines(text)

    def _script(self, text: str) -> None:
        script = Script(self._write)
        read_script(text, script)
        self.understood += script.understood
        for line in script.skipped:
            if "cfn-init" in line and self.init is not None:
                self.understood.append(line)
                init, self.init = self.init, None  # a second cfn-init has no effect
                self._cloudformation_init(init)
            else:
                self.skipped.append(line)

    def _write(self, path: str, text: str) -> bool:
        """Apply the settings in a text that is written to a file.

        Return False if it is not the file of the ECS agent, or if more than WRITTEN_MAX characters are written to this file.
        """
        self.written += len(text) if path == CONFIG_FILE else 0
        if path != CONFIG_FILE or self.written > WRITTEN_MAX:
            return False
        for line in text.splitlines():
            self._setting(line.strip())
        return True

    def _setting(self, line: str) -> None:
        if not line or line.startswith("#"):
            return
        name, equals, value = line.removeprefix("export ").partition("=")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if equals and self._apply(name.strip(), value):
            self.understood.append(line)
        else:
            self.skipped.append(line)

    def _apply(self, name: str, value: str) -> bool:
        if name == "ECS_CLUSTER" and CLUSTER.fullmatch(value):
            self.cluster = value
        elif name == "ECS_INSTANCE_ATTRIBUTES" and (attributes := _attributes(value)) is not None:
            self.attributes = attributes
        elif name == "ECS_ENABLE_GPU_SUPPORT" and value.lower() in (*TRUE, *FALSE):
            self.gpu_support = value.lower() in TRUE
        else:
            return False
        return True

    # Documents of settings

    def _cloud_config(self, text: str) -> None:
        document = _yaml(text)
        if not isinstance(document, dict):
            self.skipped += _lines(text)
            return
        for name, value in document.items():
            if name == "write_files" and isinstance(value, list):
                for file in value:
                    if isinstance(file, dict):
                        self._file(f"write_files: {file.get('path')}", str(file.get("path")), file)
            elif name in ("runcmd", "bootcmd") and isinstance(value, list):
                for command in value:
                    if isinstance(command, list) and [str(word) for word in command[:2]] in (["sh", "-c"], ["bash", "-c"]):
                        self._script(str(command[2]) if len(command) == 3 else "")
                    elif isinstance(command, list):
                        self._script(" ".join(_quoted(word) for word in command if isinstance(word, str | int)))
                    elif isinstance(command, str):
                        self._script(command)
            else:
                self.skipped.append(f"{name}:")

    def _cloudformation_init(self, metadata: Mapping[str, Any]) -> None:
        """Read the files and the commands of every config. Config sets only change the order, so they are ignored."""
        configs = metadata.get(INIT, metadata)
        for name, config in configs.items() if isinstance(configs, Mapping) else ():
            if name == "configSets" or not isinstance(config, Mapping):
                continue
            for path, file in _sorted_items(config.get("files")):
                if isinstance(file, Mapping):
                    self._file(f"{name}: {path}", path, file)
            for title, command in _sorted_items(config.get("commands")):
                text = command.get("command") if isinstance(command, Mapping) else None
                if isinstance(text, list):
                    text = " ".join(_quoted(word) for word in text)
                if isinstance(text, str):
                    self._script(text)
                else:
                    self.skipped.append(f"{name}: {title}")
            self.skipped += [f"{name}: {other}" for other in config if other not in ("files", "commands")]

    def _file(self, title: str, path: str, file: Mapping[str, Any]) -> None:
        content, encoding = file.get("content", ""), str(file.get("encoding", "")).lower()
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content if isinstance(content, str) else None
        if text is not None and encoding in ("b64", "base64"):
            try:
                text = b64decode(text).decode("utf-8", "replace")
            except ValueError:
                text = None
        elif encoding not in ("", "plain", "text/plain"):
            text = None
        is_applied = text is not None and self._write(path, text)
        (self.understood if is_applied else self.skipped).append(title)

    def _bottlerocket(self, text: str) -> None:
        import tomllib

        try:
            settings = tomllib.loads(text).get("settings", {}).get("ecs", {})
        except (ValueError, AttributeError, RecursionError):
            settings = {}
        if not isinstance(settings, dict):
            settings = {}
        for name, value in settings.items():
            is_applied = False
            if name == "cluster":
                is_applied = self._apply("ECS_CLUSTER", str(value))
            elif name == "instance-attributes" and isinstance(value, dict):
                texts = {str(key): str(inner) for key, inner in value.items()}
                is_applied = _are_valid(texts)
                self.attributes = texts if is_applied else self.attributes
            (self.understood if is_applied else self.skipped).append(f"settings.ecs.{name}")


def _attributes(text: str) -> dict[str, str] | None:
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and _are_valid(found) else None


def _are_valid(attributes: Mapping[str, Any]) -> bool:
    return len(attributes) <= ATTRIBUTES_MAX and all(
        isinstance(value, str)
        and ATTRIBUTE_NAME.fullmatch(name)
        and not name.startswith(BUILT_IN_PREFIXES)
        and ATTRIBUTE_VALUE.fullmatch(value)
        for name, value in attributes.items()
    )


def _yaml(text: str) -> Any:
    """Parse a YAML document. Return None if it is not valid, or if it has too many levels or characters.

    An alias repeats a part of the document, so a short document can become very large. An alias counts as much as this part.
    """
    import yaml  # imported only here, because most user data is a script

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    anchors: dict[str, tuple[int, int]] = {}  # anchor → size and levels of its value
    opened: list[tuple[str | None, int]] = []  # for each open collection, its anchor and the size before it
    inside = [0]  # the levels inside of the document, and inside of each open collection
    size = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            anchor, before, levels = getattr(event, "anchor", None), size, 0
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((anchor, size))
                inside.append(0)
            else:
                if isinstance(event, yaml.CollectionEndEvent):
                    anchor, before = opened.pop()
                    size, levels = size + 1, inside.pop() + 1
                elif isinstance(event, yaml.ScalarEvent):
                    size += 1 + len(event.value)
                elif isinstance(event, yaml.AliasEvent):
                    if anchor not in anchors:  # a part of the document that contains itself
                        return None
                    size, levels = size + anchors[anchor][0], anchors[anchor][1]
                if anchor is not None:
                    anchors[anchor] = size - before, levels
                inside[-1] = max(inside[-1], levels)
            if size > UNPACKED_MAX_BYTES or len(opened) + levels > NESTING_MAX:
                return None
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _sorted_items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from sorted(value.items())


def _quoted(word: Any) -> str:
    """Quote one word of a command for a shell. Redirections and pipes are not quoted."""
    text = str(word)
    return text if re.fullmatch(r"[\w./=:,@%+-]+|>>?|<|\|", text) else "'" + text.replace("'", "'\\''") + "'"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
