"""Fixtures of all tests: separate folders, one thread, one federation of processes per worker."""

import os
import signal
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest
from hypothesis import settings

# No deadline: the duration of an example depends more on the machine's load than on the code.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep a folder of tests that start Flower's processes on one worker, with one SuperLink."""
    from xdist.scheduler import LoadScopeScheduling

    class OneFederationAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = PurePosixPath(nodeid.split("::")[0]).parent.name
            return folder if folder in ("simulation", "deployment") else nodeid

    return OneFederationAtATime(config, log)


@pytest.fixture(scope="session", autouse=True)
def data_cache(tmp_path_factory):
    """Point the data cache, of this process and its children, at a temporary folder."""
    os.environ["FEDAPP_CACHE"] = str(tmp_path_factory.mktemp("data-cache"))


@pytest.fixture(autouse=True)
def client_states(tmp_path, monkeypatch):
    """Store the states of clients in a folder of the test."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "client-states"))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Let torch use one thread: on a busy machine, two wait for each other at every step."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk():
    """Let files of this process reach the disk when the system likes: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def console():
    """Show log lines on the console, as the entry points of processes do."""
    from fedapp.core.log import configure

    configure()


@pytest.fixture(scope="session", autouse=True)
def pictures():
    """Let runs in this process end without figures and report, but those within `pictures()`.

    Drawing takes four times as long as a quick run, and most tests do not look at it.
    """
    from fedapp.runtime.callbacks import standard as callbacks

    with pytest.MonkeyPatch.context() as patch:

        def leave_out():
            patch.setattr(callbacks.Figures, "run_ends", lambda *_: None)
            patch.setattr(callbacks, "write_report", lambda _: None)

        @contextmanager
        def drawn():
            patch.undo()
            yield
            leave_out()

        leave_out()
        yield drawn


@pytest.fixture(scope="module")
def few_images():
    """Let the digits have a third of their images, and batches a third of theirs.

    A client takes as many steps as before in half the time: for tests that compare bits and states,
    not accuracies.
    """
    from dataclasses import replace

    from in_process import QUICK

    from fedapp.data.datasets import DATASETS
    from fedapp.runtime.process.context import close_process
    from fedapp.runtime.process.run_data import clear_data_cache

    def third(origin):
        arrays = dict(digits.read(origin))
        split = ("train_images", "train_labels", "test_images", "test_labels")
        return arrays | {name: arrays[name][::3] for name in split}

    def forget():
        close_process()
        clear_data_cache()

    digits = DATASETS["digits"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "digits", replace(digits, read=third))
        patch.setitem(QUICK, "batch-size", 16)
        forget()
        yield
    forget()


@pytest.fixture
def handlers():
    """Restore the signal handlers after a test that changes them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
