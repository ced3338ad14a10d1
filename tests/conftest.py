"""Settings for all tests."""

import gc
import os
from collections.abc import Iterator
from functools import cache, wraps

if os.environ.get("PYTEST_XDIST_WORKER"):
    # Every core has a test of its own. PyTorch reads it when it is imported, here and in processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from atoll.support import environment
from tests.tiers import ALL

# Times vary on a busy machine. `make test` draws 25 examples, the same every time, so that it is red only for a change;
# the others draw 100 new ones.
settings.register_profile("atoll", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("first", settings.get_profile("atoll"), max_examples=25, derandomize=True)
settings.load_profile("atoll")

# Each flush to disk takes milliseconds, and counts only if the power fails. Tests of flushes replace it by their own.
os.fsync = lambda fd: None


# Each run asks git for the revision, which takes a twentieth of the tests' time, and it stays the same meanwhile.
_revision_at = cache(lambda folder, ask=environment._git_revision: ask())


@wraps(environment._git_revision)
def _known_revision() -> str | None:
    return _revision_at(os.getcwd())


environment._git_revision = _known_revision

gc.disable()  # while tests are collected, a sixth of whose time it would take: all that is made then, stays


def pytest_collection_finish() -> None:
    """Collect garbage again, but never look at what was there before the first test."""
    gc.freeze()
    gc.enable()


CONNECT = {"test_ray.py", "test_composition.py", "test_warm_start.py", "test_longer.py", "test_state.py", "test_bcd.py"}
"""Files whose tests connect this process to Ray. Its threads hold locks, which a fork of the process would wait for."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember all tests before markers and names choose among them; put those that connect to Ray last."""
    config.stash[ALL] = tuple(items)
    items.sort(key=lambda item: item.path.name in CONNECT)


@pytest.fixture
def every_torch_warning() -> Iterator[None]:
    """Have PyTorch give each warning every time, not only once a process."""
    import torch

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)
