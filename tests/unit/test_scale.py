"""A million clients fit in a gigabyte and are made within a minute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, time
import numpy as np
from atoll import Dataset, generator, make_population, partition

rng = np.random.default_rng(0)
images = np.zeros((60_000, 1, 28, 28), np.uint8)
data = Dataset("mnist's size", images, rng.integers(0, 10, 60_000), images[:1], np.zeros(1, int), 10, 1 / 255)
began = time.perf_counter()
parts = partition.PARTITIONS[sys.argv[1]](data.targets, 10**6, 10, generator(0, "partition"), samples=50)
population = make_population(data, parts)
seconds = time.perf_counter() - began
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
kilobytes = int(status["VmHWM"].split()[0])  # getrusage would count the memory of the process that started this one
print(json.dumps([len(population), int(population.sizes.sum()), seconds, kilobytes / 1e6]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads its peak memory from Linux's /proc")
def test_a_million_clients_with_fifty_samples_each() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM, "major-class"], capture_output=True, text=True, check=True)
    clients, samples, seconds, gigabytes = json.loads(result.stdout)
    assert (clients, samples) == (10**6, 50 * 10**6)
    assert seconds < 60
    assert gigabytes < 1  # the whole process at its peak, the pool and PyTorch included
