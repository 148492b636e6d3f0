"""What processes say to one another, as far as one alone can show it; tests/test_train_processes.py starts two."""

import socket
from datetime import timedelta

import pytest
import torch
from torch import distributed

from geoseg.learn import processes

LIMIT = timedelta(seconds=20)


@pytest.fixture
def agent(monkeypatch):
    """The store of torchrun, which lives on when the processes are started again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**environment, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    yield distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    if distributed.is_initialized():
        distributed.destroy_process_group()


def test_alone_there_is_nothing_to_sum():
    tensor = torch.ones(2)
    assert (processes.count(), processes.rank()) == (1, 0)
    assert processes.summed(tensor) is tensor
    assert processes.least(7, torch.device("cpu")) == 7
    assert processes.Agreement(lambda: True, torch.device("cpu")).reached()


def test_the_first_start_is_left_to_fabric(agent):
    processes.join_after_restart("gloo", LIMIT)
    assert not distributed.is_initialized()


def test_after_a_restart_the_addresses_of_the_attempt_before_are_not_read(agent, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    processes.join_after_restart("gloo", LIMIT)
    assert distributed.is_initialized()
    assert processes.summed(torch.ones(2)).tolist() == [1, 1]
    assert processes.least(7, torch.device("cpu")) == 7
    keys = agent.list_keys()
    assert any(key.startswith("attempt2/") for key in keys)
    assert not any(key.startswith("default_pg") for key in keys)
    processes.join_after_restart("gloo", LIMIT)  # once is enough
