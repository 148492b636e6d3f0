"""Grammar, exit codes, messages, warnings and progress of the commands."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import geoseg
from geoseg import __main__ as entry
from geoseg import cli, console, errors

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEOSEG_CONFIG", raising=False)


def run(*argv: str, action: cli.Action | None = None, **options: object) -> tuple[int, cli.Invocation | None]:
    calls: list[cli.Invocation] = []
    code = cli.run_command("sample", argv, action or calls.append, **options)  # type: ignore[arg-type]
    return code, calls[0] if calls else None


def write(path: str, batch_size: int) -> str:
    Path(path).write_text(f"training: {{batch_size: {batch_size}}}")
    return path


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", nargs="+")
    parser.add_argument("--resume", action="store_true")


@pytest.mark.parametrize(
    "argv",
    [
        ["a.yaml", "training.num_epochs=7", "--resume"],
        ["--resume", "training.num_epochs=7", "a.yaml"],
        ["training.num_epochs=7", "--resume", "a.yaml"],
    ],
)
def test_config_overrides_and_options_in_any_order(argv: list[str]) -> None:
    write("a.yaml", 3)
    code, call = run(*argv, add_options=add_options)
    assert code == 0
    assert call is not None
    assert (call.config.training.batch_size, call.config.training.num_epochs) == (3, 7)
    assert call.options.resume
    assert call.config_path == Path("a.yaml")


def test_an_existing_file_is_a_config_whatever_its_name() -> None:
    assert run(write("settings", 3))[0] == 0
    Path("lr=3").mkdir()
    code, call = run(write("lr=3/c.yml", 5))
    assert code == 0
    assert call is not None
    assert call.config.training.batch_size == 5


def test_the_default_config_is_the_variable_then_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    write("config.yaml", 3)
    write("other.yaml", 4)
    _, call = run()
    assert call is not None
    assert call.config.training.batch_size == 3
    monkeypatch.setenv("GEOSEG_CONFIG", "other.yaml")
    _, call = run("training.num_epochs=1")
    assert call is not None
    assert call.config.training.batch_size == 4
    _, call = run("config.yaml")
    assert call is not None
    assert call.config.training.batch_size == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["no config: none named, $GEOSEG_CONFIG not set, no file", "/config.yaml", "name one"]),
        (["nothing"], ["'nothing'", "a config file (.yaml) or section.key=value"]),
        (["a.yaml", "b.yaml"], ["2 config files (a.yaml, b.yaml)"]),
        (["no.yaml"], ["no.yaml: found no file /", "/no.yaml"]),
        (["--unknown"], ["--unknown", "--help"]),
        (["a.yaml", "--res"], ["--res"]),
        (["a.yaml", "training.batch_size=x"], ["override training.batch_size: found 'x'"]),
    ],
)
def test_wrong_words_exit_with_2(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write("a.yaml", 3)
    code, call = run(*argv, add_options=add_options)
    printed = capsys.readouterr()
    assert (code, call) == (2, None)
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert all(word in printed.err for word in words), printed.err


def test_every_wrong_word_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x", "y")[0] == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_variable_that_names_no_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("config.yaml", 3)
    monkeypatch.setenv("GEOSEG_CONFIG", "gone.yaml")
    assert run()[0] == 2
    assert capsys.readouterr().err.startswith("$GEOSEG_CONFIG: found no file /")


def test_a_command_may_do_without_a_config(tmp_path: Path) -> None:
    code, call = run(needs_config=False)
    assert code == 0
    assert call is not None
    assert call.config_path is None
    assert call.config.training.output_path == tmp_path / "runs"


def test_options_may_make_a_config_needless() -> None:
    def needs(options: argparse.Namespace) -> bool:
        return options.images is None

    Path("config.yaml").write_text("broken: [")
    assert run(add_options=add_options, needs_config=needs)[0] == 2
    code, call = run("--images", "a.tif", "b.tif", add_options=add_options, needs_config=needs)
    assert code == 0
    assert call is not None
    assert call.options.images == ["a.tif", "b.tif"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.ConfigError(["one", "two"]), 2, "one\ntwo\n"),
        (errors.DataError("one"), 2, "one\n"),
        (errors.CapacityError("one"), 3, "one\n"),
        (errors.ScenesFailed("one"), 4, "one\n"),
        (errors.Interrupted("one"), 130, "one\n"),
        (KeyboardInterrupt(), 130, "interrupted: "),
        (MemoryError("9 GiB"), 3, "memory: found 9 GiB, expected room for the work; "),
        (OSError(28, "No space left on device", "/x/y.tif"), 2, "/x/y.tif: found No space left on device"),
        (PermissionError(13, "Permission denied", "/x"), 2, "/x: found Permission denied"),
    ],
)
def test_errors_become_lines_and_exit_codes(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(call: cli.Invocation) -> None:
        raise error

    assert run(write("a.yaml", 3), action=fail)[0] == code
    printed = capsys.readouterr().err
    assert printed.startswith(text)
    assert "Traceback" not in printed
    assert printed.count("\n") == max(1, text.count("\n"))


def test_a_gpu_without_room_is_a_lack_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    class OutOfMemoryError(RuntimeError):
        """Stands for torch's."""

    def fail(call: cli.Invocation) -> None:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines")

    assert run(write("a.yaml", 3), action=fail)[0] == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("a defect"), FileNotFoundError(2, "No such file", "x"), AssertionError()])
def test_a_defect_ends_in_a_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(call: cli.Invocation) -> None:
        raise error

    assert run(write("a.yaml", 3), action=fail)[0] == 1
    assert "Traceback" in capsys.readouterr().err


def test_warnings_are_shown_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def action(call: cli.Invocation) -> None:
        for number in range(1000):
            cli.warn("no nodata value")
            cli.warn(f"scene {number} is dark")
        call.log.info("result")

    assert run(write("a.yaml", 3), action=action)[0] == 0
    printed = capsys.readouterr()
    assert printed.out == "result\n"
    lines = printed.err.splitlines()
    assert len(lines) == console.SHOWN_WARNINGS + 2
    assert lines.count("warning: no nodata value") == 1
    assert "2000 warnings (999 repeated)" in lines[-1]


def test_warnings_of_libraries_go_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    def action(call: cli.Invocation) -> None:
        warnings.simplefilter("always")
        for _ in range(3):
            warnings.warn("old\nthing", UserWarning, stacklevel=1)

    shown = warnings.showwarning
    assert run(write("a.yaml", 3), action=action)[0] == 0
    err = capsys.readouterr().err
    assert err.count("warning: old thing (UserWarning)") == 1
    assert "3 warnings" in err
    assert warnings.showwarning is shown


def test_what_libraries_log_goes_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    def action(call: cli.Invocation) -> None:
        for _ in range(3):
            logging.getLogger("rasterio._env").warning("CPLE in %s", "a.tif")
        logging.getLogger("rasterio").info("chatter")

    handlers = list(logging.getLogger().handlers)
    assert run(write("a.yaml", 3), action=action)[0] == 0
    err = capsys.readouterr().err
    assert err.count("warning: CPLE in a.tif (rasterio)") == 1
    assert "chatter" not in err
    assert "3 warnings" in err
    assert logging.getLogger().handlers == handlers


def test_a_run_without_warnings_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(write("a.yaml", 3))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("done in ")
    assert "warning" not in lines[0]


def test_progress_is_one_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with cli.progress(10, "cutting", "windows") as bar:
        for _ in range(5):
            bar.update(2)
        bar.set_text("loss 0.5")
        assert capsys.readouterr().err == ""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cutting: 10 windows in ")
    assert printed.err.endswith("s (loss 0.5)\n")


def test_progress_that_fails_does_not_say_that_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with cli.progress(10, "cutting", "windows"):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with cli.progress(4, "training", "steps") as bar:
        bar.update(4)
        console.warn("a line between")
    err = capsys.readouterr().err
    assert "training: 100%" in err
    assert "warning: a line between\n" in err


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_config(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(option)[0] == 0
    printed = capsys.readouterr().out
    assert ("[CONFIG.yaml] [section.key=value ...]" if option == "--help" else geoseg.__version__) in printed


SCRIPT = """
import sys, time
from pathlib import Path
from geoseg.cli import run_command

def action(call):
    try:
        print("ready", flush=True)
        {body}
    finally:
        Path("cleaned").touch()

sys.exit(run_command("sample", sys.argv[1:], action))
"""


def start(body: str) -> subprocess.Popen[str]:
    Path("script.py").write_text(SCRIPT.format(body=body))
    write("config.yaml", 3)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_cleans_up_and_exits_with_130(number: signal.Signals) -> None:
    process = start("time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith("interrupted: ")
    assert err.count("\n") == 1
    assert Path("cleaned").exists()


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    process = start("[print('x' * 1000, flush=True) for _ in range(1000)]")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 128 + signal.SIGPIPE


def test_a_signal_handler_does_not_stay() -> None:
    before = signal.getsignal(signal.SIGTERM)
    run(write("a.yaml", 3))
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_without_a_command_they_are_listed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(words) == 0
    printed = capsys.readouterr().out
    for name, text in entry.available_commands().items():
        assert f"  {name:<10} {text}" in printed


def test_every_command_module_is_listed() -> None:
    modules = {path.stem: path for path in (ROOT / "geoseg").glob("*.py")}
    modules |= {path.parent.name: path for path in (ROOT / "geoseg").glob("*/__init__.py")}
    commands = {name for name, path in modules.items() if "run_command(" in path.read_text()} - {"cli"}
    assert commands == set(entry.available_commands())


def test_an_unknown_command_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["sampel"]) == 2
    assert capsys.readouterr().err.startswith("command line: found 'sampel', expected one of ")


def test_a_command_is_called_with_the_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    module = argparse.Namespace(main=lambda words: calls.append(words) or 4)
    monkeypatch.setattr(entry, "available_commands", lambda: {"sample": ""})
    monkeypatch.setattr(entry.importlib, "import_module", lambda name: module)
    assert entry.main(["sample", "a.yaml", "--x"]) == 4
    assert calls == [["a.yaml", "--x"]]


def test_help_is_quick(tmp_path: Path) -> None:
    fastest = min(_seconds(lambda: _overview(tmp_path)) for _ in range(2))
    assert fastest < 5


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _overview(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", "geoseg"], capture_output=True, text=True, cwd=folder, env=environment, check=True
    )
    assert "usage: python -m geoseg.COMMAND [CONFIG.yaml]" in result.stdout
