"""Run independent tasks on local processes or a Dask cluster, through the interface of `concurrent.futures`.

Knows nothing of what the tasks do: a function that can be pickled, and its arguments one by one.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: Seconds that a stopped process may take to clean up before it is killed.
CLEANUP_SECONDS = 10.0
_IN_FLIGHT_UNKNOWN = 64


def usable_cpus() -> int:
    """Return how many CPUs this process may use: its affinity, bounded by the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def resolve_workers(workers: int | Literal["auto"]) -> int:
    """Return a number of processes; 'auto' is one per usable CPU."""
    return usable_cpus() if workers == "auto" else max(1, workers)


def local_executor(workers: int | Literal["auto"], preload: Sequence[str] = ()) -> Executor:
    """Return an executor: in this process for one worker or fewer, else on processes of this machine.

    Use it in a `with`: leaving it by an exception stops the processes, after they have cleaned up.

    Args:
        workers: How many.
        preload: Modules that the tasks need: they are imported once, for all processes.
    """
    count = resolve_workers(workers)
    return InlineExecutor() if count <= 1 else LocalProcesses(count, preload)


class InlineExecutor(Executor):
    """Runs a task in the calling process when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call and return its finished future; an interrupt is raised at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LocalProcesses(ProcessPoolExecutor):
    """Processes that stop soon and cleanly when the work is interrupted.

    Not forked from this one: GDAL and torch hold locks and threads that do not survive a fork. They are forked from a
    server that has imported what they need and done nothing since, so that the imports are paid for and held in memory
    once; where there is no such server (Windows) they are spawned.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        self.workers = workers
        context = _server_context(preload)
        super().__init__(workers, mp_context=context, initializer=_prepare_process, initargs=(context.Value("i", 0),))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call over to a process."""
        return super().submit(_call, fn, args, kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for the tasks; after an exception stop them instead."""
        if kind is not None:
            self.stop()
        return super().__exit__(kind, error, trace)

    def stop(self) -> None:
        """Interrupt the running tasks, drop the waiting ones, and end the processes."""
        processes = list((self._processes or {}).values())
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + CLEANUP_SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _server_context(preload: Sequence[str]) -> BaseContext:
    """Return how processes are started; their server begins at once to import, while the caller goes on."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    forkserver.ensure_running()
    return context


class MissingPackageError(ImportError):
    """`distributed`, which a Dask cluster needs, is not installed."""


@contextmanager
def dask_executor(scheduler: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """Yield an executor on a Dask cluster.

    Args:
        scheduler: Address of a running cluster's scheduler, tcp://host:port. Its workers must see the same files under
            the same names.
        workers: Instead, start a cluster of so many processes on this machine.

    Raises:
        MissingPackageError: `distributed` is not installed.
        OSError: There is no scheduler at that address.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise MissingPackageError("distributed") from error
    if scheduler is None:
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield _DaskExecutor(client)
    else:
        with Client(scheduler, timeout=30) as client:
            yield _DaskExecutor(client)


class _DaskExecutor(Executor):
    """`distributed`'s own executor, with the number of its workers."""

    def __init__(self, client: Any) -> None:
        # Two calls of the same task are not one: it may have failed meanwhile.
        self._inner = client.get_executor(pure=False)
        self.workers = max(1, sum(client.nthreads().values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._inner.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=wait)


def share_of_work(text: str | None, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (i, n), i from 1: which of n shares of the work is ours.

    Args:
        text: "i/n" as the user wrote it; None takes what a batch array says: AWS Batch's AWS_BATCH_JOB_ARRAY_INDEX
            (from 0) and AWS_BATCH_JOB_ARRAY_SIZE, SLURM's SLURM_ARRAY_TASK_ID (from SLURM_ARRAY_TASK_MIN) and
            SLURM_ARRAY_TASK_COUNT; without those, all of the work: (1, 1).
        environment: Variables; None: those of the process.

    Raises:
        ValueError: The text or the variables do not say a share.
    """
    if text is not None:
        first, slash, second = text.partition("/")
        if not slash or not first.strip().isdigit() or not second.strip().isdigit():
            raise ValueError(f"{text!r} is not of the form i/n")
        return _checked_share(int(first), int(second), text)
    variables = os.environ if environment is None else environment
    for index, size, base in (
        ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE", "0"),
        ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", variables.get("SLURM_ARRAY_TASK_MIN", "0")),
    ):
        if index in variables:
            if size not in variables:
                raise ValueError(f"{index} is set but {size} is not")
            try:
                place, count = int(variables[index]) - int(base) + 1, int(variables[size])
            except ValueError:
                raise ValueError(f"{index} and {size} are not whole numbers") from None
            return _checked_share(place, count, f"{index}={variables[index]}, {size}={variables[size]}")
    return 1, 1


def _checked_share(place: int, count: int, text: str) -> tuple[int, int]:
    if not 1 <= place <= count:
        raise ValueError(f"{text} is none of the shares 1 to {count}")
    return place, count


def map_tasks(
    executor: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], in_flight: int | None = None
) -> Iterator[tuple[Task, Result | Exception]]:
    """Yield each task with its result, or with the exception that it raised, in the order of completion.

    Args:
        executor: Where to run them; stays open.
        function: Called with one task. For processes it must be importable by name.
        tasks: Taken from the iterable as room becomes free, so that it may be long.
        in_flight: How many tasks are handed over at once. Default: two per local process.

    If the consumer stops or is interrupted, tasks that have not begun are dropped.
    """
    limit = in_flight or _default_in_flight(executor)
    waiting = iter(tasks)
    running: dict[Future[Result], Task] = {}
    try:
        while True:
            for task in islice(waiting, limit - len(running)):
                running[_submit(executor, function, task)] = task
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in [future for future in running if future in done]:
                yield running.pop(future), _outcome(future)
    finally:
        for future in running:
            future.cancel()


def _default_in_flight(executor: Executor) -> int:
    if isinstance(executor, InlineExecutor):
        return 1
    workers = getattr(executor, "workers", None)
    return 2 * workers if workers else _IN_FLIGHT_UNKNOWN


def _submit(executor: Executor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
    try:
        return executor.submit(function, task)
    except Exception as error:  # the pool is broken: report it for this task as for those that were running
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


def _outcome(future: Future[Any]) -> Any:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error  # a worker was interrupted: so is the work


def worker_number() -> int | None:
    """Return the number of this process among those that work side by side, from 0; None if it is not one of them.

    Workers of a Dask cluster have one if their name is a number, as in clusters that were started for the purpose.
    """
    if _number is not None or "distributed.worker" not in sys.modules:
        return _number
    from distributed import get_worker

    try:
        name = str(get_worker().name)
    except ValueError:  # this is no worker
        return None
    return int(name) if name.isdecimal() else None


_number: int | None = None


def _prepare_process(taken: Any) -> None:
    """Number a worker; make it leave Ctrl-C to its parent, clean up on SIGTERM, and end if its parent dies."""
    global _number
    with taken.get_lock():
        _number = taken.value
        taken.value += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()


class _StoppedError(SystemExit):
    """SIGTERM came; carries the task through its `finally` blocks to the end of the process."""


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not disturb the cleaning up
    raise _StoppedError(128 + number)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except _StoppedError as stopped:
        # The pool would send this home as the task's result and begin the next task.
        os._exit(stopped.code if isinstance(stopped.code, int) else 1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPUs that the control groups of this process grant, or None without a limit."""
    own = root / _own_cgroup()
    folders = [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
    quotas = [_quota_v2(folder) for folder in folders] + [_quota_v1(root / "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such group, or the quota is 'max'
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError):
        return None


def _own_cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
