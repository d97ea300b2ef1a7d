"""Which room may import which, where time, randomness and SQL may stand, and what names and sentences may not be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from inspect import getclosurevars
from pathlib import Path
from typing import Any

from corral.core.errors import ApiError
from corral.core.transactions import OncePerTransaction, Together
from corral.reconcile import LOGS, METRICS, STATE
from each import check_each

REPOSITORY = Path(__file__).parent.parent
ROOT = REPOSITORY / "src" / "corral"
FILES = sorted(ROOT.rglob("*.py"))
EVERYONE = {"core/errors", "core/ids", "core/clock"}
DATABASE = {"core/database", "core/undo_log"}
PROCESS = {"process/options", "process/log", "process/log_times", "process/control_characters"}
MAY_IMPORT = {
    "core": {"model", "version"},
    "process": {"core/clock"},
    "model": set(),
    "decide": {"model"},
    "store": {"model", *DATABASE},
    "telemetry": {"model", *DATABASE},
    "audit": set(),
    "aws": {"model"},
    "blobs": {"model"},
    "backup": {"model", "store", "telemetry", "blobs", "core", "process", "version"},
    "channel": set(),
    "configuration": {"model", "process/data_folder"},
    "functions": set(),
    "node": {"model", "channel", "process", "version"},
    "access": {"model", "decide", "store", "core"},
    "operations": {"model", "decide", "store", "core", "access"},
    "template_types": {"model", "decide", "store", "core", "aws", "access", "operations"},
    "fleet": {"model", "decide", "store", "telemetry", "core", "access"},
    "services": {
        "audit",
        "model",
        "decide",
        "store",
        "telemetry",
        "blobs",
        "core",
        "access",
        "operations",
        "fleet",
        "template_types",
    },
    "reconcile": {"model", "decide", "store", "telemetry", "services", "core", "access", "operations", "fleet", "template_types"},
    "server": {
        "audit",
        "model",
        "decide",
        "store",
        "telemetry",
        "blobs",
        "services",
        "access",
        "operations",
        "fleet",
        "template_types",
        "reconcile",
        "core",
        "configuration",
        "aws",
        "node",
        "channel",
        "process",
        "version",
    },
    "cli": {
        "channel",
        "configuration",
        "process/control_characters",
        "process/data_folder",
        "process/log_times",
        "process/port_holder",
        "version",
    },
    "worker": set(),
    "__main__": {"cli"},
    "version": set(),
    "testing": set(),
}
SERVICES_IMPORT = {  # service → the services whose modules it may import; only Lambda, S3 and SNS form a circle
    "applicationautoscaling": {"cloudwatch", "ecs"},
    "autoscaling": {"cloudwatch", "ec2", "ecs", "sns", "sqs"},
    "batch": {"autoscaling", "ec2", "ecr", "ecs", "ssm"},
    "cloudformation": {"ec2", "lambda_", "s3", "secretsmanager", "sns", "ssm"},  # the roof: no service imports it
    "cloudtrail": set(),
    "cloudwatch": set(),
    "corral": {"ecs", "iam", "sqs"},
    "ec2": {"iam", "ssm"},
    "ecr": set(),
    "ecs": {"ecr", "logs", "s3", "secretsmanager", "ssm"},
    "iam": set(),
    "lambda_": {"cloudwatch", "s3", "sqs"},
    "logs": {"cloudwatch"},
    "s3": {"lambda_", "sns", "sqs"},
    "secretsmanager": set(),
    "sns": {"lambda_", "sqs"},
    "sqs": set(),
    "ssm": {"secretsmanager"},
    "sts": set(),
}
CLI_LAYERS = ("printing", "client", "runs")  # folders of cli, lowest first; all other commands are above them
EXCEPTIONS = {  # file → rooms
    "services/batch/task_documents.py": {"aws"},  # RegisterJobDefinition calls RegisterTaskDefinition without HTTP
}
BANNED_IN_DECIDE = {
    "time", "datetime", "random", "uuid", "os", "subprocess", "socket", "sqlite3", "logging", "asyncio", "threading",
}  # fmt: skip
CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("uuid", "uuid4"), ("uuid", "uuid1")}
MAY_READ_THE_CLOCK = {"clock.py", "ids.py"}
MAY_SPEAK_SQL = {"store", "telemetry", "core"}
SQL = ("SELECT ", "INSERT ", "UPDATE ", "DELETE FROM", "CREATE TABLE", "PRAGMA ")


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a module, as `ast.walk` does in twice the time."""
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    for node in nodes:  # the list grows meanwhile
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def imported(nodes: list[ast.AST]) -> set[str]:
    """Full names of everything that a module imports, also inside functions."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def our_modules(names: set[str]) -> set[str]:
    """The modules of ours among names such as `corral.core.clock.Clock`, as `core/clock`."""
    ours = {name.removeprefix("corral.").replace(".", "/") for name in names if name.startswith("corral.")}
    return {name for name in ours if (ROOT / f"{name}.py").exists() or (ROOT / name / "__init__.py").exists()}


def is_allowed(module: str, rooms: set[str]) -> bool:
    """A rule names a room, or one module of it."""
    return module in rooms or module.split("/")[0] in rooms


def test_tidy() -> None:
    check_each(FILES, is_tidy)


def is_tidy(path: Path) -> None:
    room, nodes = room_of(path), nodes_of(path)
    names = imported(nodes)
    assert path.name != "utils.py"
    if room == "__init__":
        assert not our_modules(names)
        return
    shared = {"core/errors"} if room == "decide" else set() if room in ("cli", "channel", "functions", "worker") else EVERYONE
    if room == "services" and path.name in ("errors.py", "handlers.py"):
        shared = shared | {"aws"}  # errors and operations come from botocore's models
    allowed = MAY_IMPORT[room] | EXCEPTIONS.get(str(path.relative_to(ROOT)), set()) | {room} | shared
    folders = {name.split("/")[0] for name in allowed}
    refused = {module for module in our_modules(names) if not is_allowed(module, allowed)} - folders
    assert not refused, f"{room} may not import {refused}"
    if room == "cli" and path.parent.name in CLI_LAYERS:
        layers = CLI_LAYERS[: CLI_LAYERS.index(path.parent.name) + 1]
        assert all(name.split("/")[1] in layers for name in our_modules(names) if name.startswith("cli/"))
    if room == "decide":
        assert not {name.split(".")[0] for name in names} & BANNED_IN_DECIDE
    if path.name not in MAY_READ_THE_CLOCK:
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        read = {(node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name)}
        assert not read & CLOCKS, f"time and ids are handed in: {read & CLOCKS}"
    if room not in MAY_SPEAK_SQL:
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert not [text for text in strings if text.lstrip().startswith(SQL)], "SQL lives in the stores"


def our_imports() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports, as `services/ecs/tasks`."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        module = str(path.relative_to(ROOT).with_suffix("")).removesuffix("/__init__")
        found[module] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:  # a module of a package, or a name of a module
                    found[module] |= our_modules({f"{node.module}.{alias.name}"}) or our_modules({node.module})
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of nodes that reach each other (the strongly connected components with several nodes, by Tarjan's algorithm)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for each in graph.get(node, ()):
            if each not in order:
                visit(each)
            if each in stack:
                low[node] = min(low[node], low[each])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def test_imports_form_no_circle() -> None:
    """A room is a folder, or the folder of one service. Lambda, S3 and SNS notify each other on AWS, so they may form a circle."""
    modules = our_imports()
    assert circles(modules) == []
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, imports in modules.items():
        for each in imports:
            if house_room(each) != house_room(module):
                rooms[house_room(module)].add(house_room(each))
    assert circles(rooms) == [{"services/lambda_", "services/s3", "services/sns"}]
    for service, allowed in SERVICES_IMPORT.items():
        others = {room for room in rooms[f"services/{service}"] if room.startswith("services/")}
        assert others <= {f"services/{each}" for each in allowed}, service
    assert {room.partition("/")[2] for room in rooms if room.startswith("services/")} <= set(SERVICES_IMPORT)


def house_room(module: str) -> str:
    parts = module.split("/")
    return "/".join(parts[:2]) if parts[0] == "services" else parts[0]


def test_commands_print_through_one_module() -> None:
    """Text of tasks is escaped in `output.py` and `safe_text.py`. A command that prints by itself would bypass that."""
    raw = re.compile(r"click\.s?echo\(|(?<![_.])print\(|rich\.(console|text) |rich import|(stdout|stderr)\.write\(|\bout\.write\(")
    own_text = {"output.py", "safe_text.py", "env.py", "completion.py"}  # shells evaluate what `env` and `completion` print
    screens = {"top.py", "top_tables.py", "fleet.py", "screen.py", "stack.py"}  # compose what the console prints
    logs = {"logs.py", "foreground_run.py"}  # write logs, by `escape_log`
    for path in (ROOT / "cli").rglob("*.py"):
        if path.name not in own_text:
            found = {match[0] for match in raw.finditer(path.read_text())} - ({"rich.console "} if path.name in screens else set())
            assert all(path.name in logs and text.endswith("write(") for text in found), (path, found)


def test_text_becomes_a_number_in_one_place() -> None:
    """`isdigit` accepts digits that `int` refuses, and `int` accepts more than a column holds: use `model/numbers.py`."""
    own = {"cli", "channel", "node"}  # they read arguments and /proc, not requests
    checked = {"request_body.py"}  # of a header that the HTTP parser has checked
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in FILES
        if room_of(path) not in own and path.name not in checked
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\.is(digit|decimal|numeric)\(\)", line) and ".isascii()" not in line
    ]
    assert found == []


def test_programs_do_not_import_from_the_current_folder() -> None:
    """Anybody can put a folder `corral` into /tmp, and root may start Corral there. `-P` and `-I` leave the current folder out."""
    found = [path.name for path in FILES if re.search(r"""sys\.executable, ["']-m["']""", path.read_text())]
    assert found == []


def test_every_room_has_rules() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} == set(MAY_IMPORT)


def reconcilers() -> Iterator[tuple[str, Any, str | None]]:
    """(key, function, its module where that is imported only when it is needed)"""
    for key, each in [*STATE.items(), *METRICS.items(), *LOGS.items()]:
        function = each.run if isinstance(each, OncePerTransaction | Together) else each
        named = getclosurevars(function).nonlocals
        lazy = f"corral.reconcile.{named['module']}" if named else None
        yield key, getattr(import_module(lazy), named["name"]) if lazy else function, lazy


def test_every_loop_is_in_reconcile() -> None:
    elsewhere = {key: function for key, function, _ in reconcilers() if not function.__module__.startswith("corral.reconcile.")}
    assert not elsewhere


def test_loops_of_seldom_used_services_are_imported_when_they_are_needed() -> None:
    lazy = {module for _, _, module in reconcilers() if module}
    imports = "import sys, corral.reconcile; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=True).stdout.split()
    assert "corral.reconcile" in shown and len(lazy) > 3 and not lazy & set(shown)


def test_the_server_imports_what_few_users_need_when_it_is_needed() -> None:
    seldom = {
        "getopt", "shutil", "tomllib", "pty", "corral.server.exec.data_channel", "corral.services.corral.handlers",
        "corral.server.http.websocket", "corral.fleet.instance_types", "corral.services.ecs.managed_scaling",
        "corral.services.ecs.handlers", "corral.access.authorization", "gzip", "termios", "corral.services.corral.joining",
        "corral.services.ecs.host_loss", "corral.services.ecr.image_storage", "corral.decide.placement.multi_node",
        "corral.server.pages.metrics_page", "corral.server.door.door", "corral.server.task_endpoints",
        "corral.services.ecs.task_metadata", "corral.decide.placement.instance_query", "corral.server.console.console",
        "corral.server.console.changes", "corral.server.console.sessions",
    }  # fmt: skip
    imports = "import sys, corral.server.__main__; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=True).stdout.split()
    assert "corral.server.front_door" in shown and not seldom & set(shown)
    imports = "import sys, corral.node.__main__; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=True).stdout.split()
    assert "corral.node.agent" in shown and not {"hashlib", "cryptography", "corral.node.gateway_keeper"} & set(shown)


UNCLEAR = re.compile(r"\b(be" r"side|no" r"body|who" r"ever|wh" r"om)\b", re.IGNORECASE)  # split, so that this line is not found
TEXTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "docs/*.md",
    "src/**/*.py",
    "src/**/*.sql",
    "tests/**/*.py",
    "bench/*.py",
)


def test_sentences_have_a_subject() -> None:
    """The words are symptoms of sentences that need a second reading: say which caller, task or process it is."""
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for pattern in TEXTS
        for path in sorted(REPOSITORY.glob(pattern))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNCLEAR.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_class_name_has_one_meaning() -> None:
    """Errors are named by AWS's codes, which services share; a service defines each of them once."""
    places = defaultdict(list)
    for path in FILES:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for name, kind in vars(import_module(module)).items():
            if isinstance(kind, type) and kind.__module__ == module and not name.startswith("_"):
                scope = module.rpartition(".")[0] if issubclass(kind, ApiError) else ""
                places[scope, name].append(module)
    twice = {name: modules for (_, name), modules in places.items() if len(modules) > 1}
    assert not twice, twice


def test_the_architecture_names_files_that_exist() -> None:
    known = {
        str(path.relative_to(REPOSITORY))
        for folder in ("src", "tests", "tools", "bench")
        for path in (REPOSITORY / folder).rglob("*.*")
    }
    named = set(re.findall(r"`([\w/.]+\.(?:py|sql|json))`", (REPOSITORY / "docs" / "architecture.md").read_text()))
    in_data_folder = {"host.json", "joined.json", "restored.json", "server.json"}
    missing = {name for name in named - in_data_folder if not any(path.endswith(f"/{name}") or path == name for path in known)}
    assert len(named) > 50 and not missing, missing


def test_the_range_of_botocore_ends_after_the_version_of_the_suite() -> None:
    """Corral reads botocore's data files, whose content a later version may change. `make constraints` renews the bound."""
    listed = re.findall(r"^(boto3|botocore)==(\d+)\.(\d+)\.", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    project = (REPOSITORY / "pyproject.toml").read_text()
    bounds = dict(re.findall(r'"(boto3|botocore)>=[0-9.]+,<([0-9.]+)"', project))
    assert bounds == {name: f"{major}.{int(minor) + 1}" for name, major, minor in listed}
