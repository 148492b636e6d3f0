"""Tasks in this process and on others: results, failures, interrupts."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from geoseg import execution
from geoseg.errors import DataError
from geoseg.execution import local_executor, map_tasks, resolve_workers, usable_cpus, worker_number


def work(task: int) -> tuple[int, int]:
    if task == 3:
        raise DataError(["three", "is bad"])
    return task * task, os.getpid()


def sleep_then_clean(folder: str) -> None:
    (Path(folder) / f"started-{os.getpid()}").touch()
    try:
        time.sleep(60)
    finally:
        (Path(folder) / f"cleaned-{os.getpid()}").touch()


def die(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_come_back_with_results_or_exceptions(workers: int) -> None:
    with local_executor(workers) as executor:
        outcome = dict(map_tasks(executor, work, range(6)))
    error = outcome.pop(3)
    assert isinstance(error, DataError)
    assert error.problems == ("three", "is bad")
    results = {task: value for task, value in outcome.items() if isinstance(value, tuple)}
    assert {task: value[0] for task, value in results.items()} == {0: 0, 1: 1, 2: 4, 4: 16, 5: 25}
    here = {value[1] for value in results.values()} == {os.getpid()}
    assert here == (workers == 1)


def number_after_a_while(_: int) -> int | None:
    time.sleep(0.5)  # so that both processes have work
    return worker_number()


def test_processes_are_numbered() -> None:
    with local_executor(2) as executor:
        assert {number for _, number in map_tasks(executor, number_after_a_while, range(4))} == {0, 1}
    assert worker_number() is None


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_runs_here_one_task_at_a_time(workers: int) -> None:
    done: list[int] = []
    with local_executor(workers) as executor:
        for task, _ in map_tasks(executor, done.append, iter(range(5))):
            assert done == list(range(task + 1))


def test_tasks_are_taken_as_room_becomes_free() -> None:
    taken: list[int] = []

    def tasks() -> object:
        for number in range(100):
            taken.append(number)
            yield number

    with ThreadPoolExecutor(2) as executor:
        outcomes = map_tasks(executor, abs, tasks(), in_flight=3)  # type: ignore[arg-type]
        next(outcomes)
        assert len(taken) <= 4
        outcomes.close()


def test_results_come_in_the_order_of_completion() -> None:
    first_may_end = threading.Event()

    def wait_for_second(task: int) -> int:
        if task == 0:
            assert first_may_end.wait(20)
        return task

    order = []
    with ThreadPoolExecutor(2) as executor:
        for task, _ in map_tasks(executor, wait_for_second, [0, 1]):
            order.append(task)
            first_may_end.set()
    assert order == [1, 0]


def test_no_tasks_is_no_work() -> None:
    with local_executor(1) as executor:
        assert list(map_tasks(executor, work, [])) == []


def test_an_interrupt_in_this_process_is_raised() -> None:
    def interrupt(task: int) -> None:
        raise KeyboardInterrupt

    with local_executor(1) as executor, pytest.raises(KeyboardInterrupt):
        list(map_tasks(executor, interrupt, [1, 2]))


def test_a_consumer_that_stops_drops_what_has_not_begun() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def task(number: int) -> None:
        begun.append(number)
        if number:
            gate.wait(20)

    with ThreadPoolExecutor(1) as executor:
        outcomes = map_tasks(executor, task, range(10), in_flight=5)
        next(outcomes)
        outcomes.close()
        gate.set()
    assert len(begun) <= 2


def modules_at_start(_: int) -> tuple[int, bool]:
    """Return who the parent is, and whether a module is there that this file does not import."""
    return os.getppid(), "pyogrio" in sys.modules


def test_what_tasks_need_is_imported_once_by_a_server_that_forks(tmp_path: Path) -> None:
    program = "import sys; sys.path[:0] = [{!r}]; import tests.test_execution as t; t.show_parents()"
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", program.format(str(root))], capture_output=True, text=True, check=True)
    own, parents, loaded = json.loads(done.stdout)
    assert len(set(parents)) == 1
    assert parents[0] != own
    assert all(loaded)


def show_parents() -> None:
    """Print this process, the parents of two workers, and whether the module was loaded in them."""
    with local_executor(2, ["pyogrio"]) as executor:
        found = [outcome for _, outcome in map_tasks(executor, modules_at_start, range(4))]
    print(json.dumps([os.getpid(), [f[0] for f in found], [f[1] for f in found]]))


def test_an_exception_stops_the_processes_after_they_have_cleaned_up(tmp_path: Path) -> None:
    def interrupted_run() -> None:
        with local_executor(2) as executor:
            outcomes = map_tasks(executor, sleep_then_clean, [str(tmp_path)] * 6)
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            watcher = threading.Thread(target=_alarm_when_started, args=(tmp_path,), daemon=True)
            watcher.start()
            next(outcomes)

    previous = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_run()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - started < 45
    begun = {path.name.split("-")[1] for path in tmp_path.glob("started-*")}
    assert len(begun) == 2
    assert {path.name.split("-")[1] for path in tmp_path.glob("cleaned-*")} == begun
    assert multiprocessing.active_children() == []


def _alarm_when_started(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.glob("started-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGALRM)


def test_a_killed_process_is_reported_for_its_task_and_the_rest() -> None:
    with local_executor(2) as executor:
        outcome = dict(map_tasks(executor, die, range(8)))
    assert set(outcome) == set(range(8))
    assert isinstance(outcome[1], BrokenProcessPool)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a forked one would take this process's server for its own
    parent = context.Process(target=_parent, args=(str(tmp_path),))
    parent.start()
    deadline = time.monotonic() + 40
    while not list(tmp_path.glob("started-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    (begun,) = tmp_path.glob("started-*")
    worker = int(begun.name.split("-")[1])
    parent.kill()
    parent.join()
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(worker)


def _parent(folder: str) -> None:
    executor = execution.LocalProcesses(2)
    list(map_tasks(executor, sleep_then_clean, [folder]))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_auto_is_the_number_of_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_workers("auto") == usable_cpus() >= 1
    assert resolve_workers(0) == 1
    assert resolve_workers(7) == 7
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(execution, "_cgroup_quota", lambda: None)
    assert usable_cpus() == 16
    monkeypatch.setattr(execution, "_cgroup_quota", lambda: 1.5)
    assert usable_cpus() == 2
    monkeypatch.setattr(execution, "_cgroup_quota", lambda: 0.1)
    assert usable_cpus() == 1


def test_the_smallest_quota_of_the_enclosing_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.setattr(execution, "_own_cgroup", lambda: "outer/inner")
    assert execution._cgroup_quota(tmp_path) is None
    (inner / "cpu.max").write_text("max 100000\n")
    assert execution._cgroup_quota(tmp_path) is None
    (tmp_path / "outer" / "cpu.max").write_text("250000 100000\n")
    assert execution._cgroup_quota(tmp_path) == 2.5
    (inner / "cpu.max").write_text("400000 100000\n")
    assert execution._cgroup_quota(tmp_path) == 2.5
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert execution._cgroup_quota(tmp_path) == 2.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    assert execution._cgroup_quota(tmp_path) == 1.0
