"""The machine of a benchmark: its description, its memory, and generated images.

Images are random bytes in CIFAR-10's file format. The cost of training does not depend on their
content, and no download is needed.
"""

import importlib.metadata
import os
import pickle
import platform
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from fedapp.core.hardware import cores, gpu_count

CLASSES, SIDE, CHANNELS = 10, 32, 3
_MARK = "FEDAPP_BENCH_MARK"
_TRAIN_FILES = 5


@contextmanager
def benchmark_images(train: int) -> Iterator[Path]:
    """Yield a temporary data-dir for "cifar10" with `train` random images and its own cache."""
    with tempfile.TemporaryDirectory(prefix="fedapp-bench-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        rng = np.random.default_rng(0)
        for part in range(_TRAIN_FILES):
            count = len(range(part, train, _TRAIN_FILES))
            _write_images(data / f"data_batch_{part + 1}", count, rng)
        _write_images(data / "test_batch", CLASSES, rng)
        names = {"label_names": [f"class{label}" for label in range(CLASSES)]}
        (data / "batches.meta").write_bytes(pickle.dumps(names))
        with _environment_value("FEDAPP_CACHE", str(Path(folder) / "cache")):
            yield data


def environment() -> dict[str, Any]:
    """Return the properties of the environment on which the results depend."""
    packages = ("fedapp", "flwr", "ray", "torch")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "load_average_at_end": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpus": [torch.cuda.get_device_name(i) for i in range(gpu_count())],
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def memory_bandwidth(megabytes: int = 256, repeats: int = 5) -> float:
    """Return the GB/s, reads plus writes, of one thread that copies a large array."""
    source = np.ones(megabytes * 2**17)
    target = np.empty_like(source)
    target[:] = source
    return 2 * source.nbytes / best_seconds(lambda: np.copyto(target, source), repeats) / 1e9


def best_seconds(work: Any, repeats: int) -> float:
    """Return the shortest time of some calls, the one with the least disturbance."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


class PeakMemory:
    """The peak memory of all processes that start inside the `with` block, taken together.

    Pages of files (libraries, mapped data) and Ray's object store do not count. A page that forked
    processes share counts once on Linux, elsewhere for each of them. `megabytes` is None without
    such processes.
    """

    megabytes: float | None = None

    def __init__(self, interval: float = 0.5) -> None:
        self._interval = interval
        self._done = threading.Event()
        self._mark = str(uuid.uuid4())

    def __enter__(self) -> "PeakMemory":
        self._value = _environment_value(_MARK, self._mark)
        self._value.__enter__()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._value.__exit__(None, None, None)

    def _watch(self) -> None:
        while not self._done.wait(self._interval):
            sizes = [_own_bytes(process, self._mark) for process in psutil.process_iter()]
            if sum(sizes):
                self.megabytes = max(self.megabytes or 0.0, sum(sizes) / 1e6)


def _own_bytes(process: psutil.Process, mark: str) -> int:
    """Return the resident bytes of a process with the mark, with its part of shared ones, or 0."""
    try:
        if process.environ().get(_MARK) != mark:
            return 0
        return _anonymous_bytes(process)
    except (psutil.Error, OSError):  # another user's, or ended
        return 0


def _anonymous_bytes(process: psutil.Process) -> int:
    """Return the bytes of anonymous pages; a page of n processes counts 1/n for each on Linux."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines()
    except FileNotFoundError:  # not Linux, or ended: then the next call raises
        lines = []
    for line in lines:
        name, value, *_ = line.split()
        if name == "Pss_Anon:":
            return int(value) * 1024
    memory = process.memory_info()
    return memory.rss - getattr(memory, "shared", 0)


@contextmanager
def _environment_value(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in the block, which processes started there inherit."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _write_images(path: Path, count: int, rng: np.random.Generator) -> None:
    """Write `count` images of random pixels with alternating classes."""
    pixels = rng.integers(0, 256, (count, CHANNELS * SIDE * SIDE), dtype=np.uint8)
    labels = [index % CLASSES for index in range(count)]
    path.write_bytes(pickle.dumps({"data": pixels, "labels": labels}))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
