"""The curves of a run in MLflow, if the user wants them there: an extra, `pip install geoseg[mlflow]`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from geoseg.errors import ConfigError, problem
from geoseg.learn.checkpoint import BEST, CONFIG, METRICS, REPORT
from geoseg.learn.records import read_metrics

EXPERIMENT = "geoseg"
FOLDER_TAG = "geoseg.folder"  # by which a resumed run finds its own
_KEY = "training.mlflow"
_LONGEST = 500  # characters of a parameter


def check_installed(target: Path | str | None) -> None:
    """Refuse a target without MLflow, before anything is written.

    Raises:
        ConfigError: MLflow is not installed.
    """
    if target is not None and importlib.util.find_spec("mlflow") is None:
        found = f"{target}, but MLflow is not installed"
        remedy = "pip install 'geoseg[mlflow]', or leave the key out"
        raise ConfigError(problem(_KEY, found, "the package mlflow", remedy))


class MlflowRun:
    """A run in MLflow that holds what `metrics.csv` holds.

    What is missing there is added after each epoch, so an epoch is in it once, whether the run was resumed or the
    server was away for a while; a server that is away does not stop the training.

    Args:
        target: A folder, or the address of a server.
        folder: The run folder.
        resumed: Go on with the run of that folder, if there is one.
        params: The config, section.key to value.
        warn: Told when the server could not be reached.

    Raises:
        ConfigError: MLflow is not installed, or the target cannot be used.
    """

    def __init__(
        self,
        target: Path | str,
        folder: Path,
        resumed: bool,
        params: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self.folder, self._target, self._warn = folder, target, warn
        check_installed(target)
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._error = MlflowException
        if isinstance(target, Path):  # newer versions want a database, which needs far more than the extra
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            self._client = MlflowClient(tracking_uri=target.as_uri() if isinstance(target, Path) else target)
            self._id = self._own_run(resumed, params)
        except (MlflowException, OSError) as error:
            found = f"{target}, which cannot be used ({' '.join(str(error).split())[:200]})"
            expected = "a folder or the address of an MLflow server"
            raise ConfigError(problem(_KEY, found, expected, "correct it, or leave the key out")) from error

    def _own_run(self, resumed: bool, params: Mapping[str, Any]) -> str:
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        where = str(self.folder.resolve())
        if resumed:
            wanted = f"tags.`{FOLDER_TAG}` = '{where}'"
            found = self._client.search_runs(
                [experiment], wanted, order_by=["attributes.start_time DESC"], max_results=1
            )
            if found:
                self._client.set_terminated(found[0].info.run_id, "RUNNING")
                return str(found[0].info.run_id)
        run = self._client.create_run(experiment, run_name=self.folder.name, tags={FOLDER_TAG: where})
        for name, value in params.items():
            self._client.log_param(run.info.run_id, name, str(value)[:_LONGEST])
        return str(run.info.run_id)

    def update(self) -> None:
        """Add the epochs of `metrics.csv` that are not there yet."""
        from mlflow.entities import Metric

        try:
            there = {point.step for point in self._client.get_metric_history(self._id, "trn_loss")}
            for row in read_metrics(self.folder / METRICS):
                epoch = int(row["epoch"])
                values = {name: value for name, value in row.items() if value == value and name != "epoch"}
                if epoch not in there:
                    metrics = [Metric(_plain(name), value, 0, epoch) for name, value in values.items()]
                    self._client.log_batch(self._id, metrics=metrics)
        except (self._error, OSError) as error:
            self._warn(
                f"MLflow at {self._target}: {' '.join(str(error).split())[:200]}; trying again after the next epoch"
            )

    def end(self, status: str) -> None:
        """Add the files of the run and say how it ended: FINISHED, KILLED or FAILED."""
        self.update()
        try:
            for name in (CONFIG, REPORT, BEST):
                if (self.folder / name).exists():
                    self._client.log_artifact(self._id, str(self.folder / name))
            self._client.set_terminated(self._id, status)
        except (self._error, OSError) as error:
            self._warn(f"MLflow at {self._target}: {' '.join(str(error).split())[:200]}; its files are missing there")


@contextmanager
def mlflow_run(make: Callable[[], MlflowRun | None]) -> Iterator[Callable[[], None]]:
    """Surround a training with a run in MLflow, if there shall be one; gives what to call after each epoch."""
    run = make()
    if run is None:
        yield lambda: None
        return
    try:
        yield run.update
    except KeyboardInterrupt:
        run.end("KILLED")
        raise
    except BaseException:
        run.end("FAILED")
        raise
    run.end("FINISHED")


def _plain(name: str) -> str:
    """Return a name of a metric without what MLflow refuses."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
