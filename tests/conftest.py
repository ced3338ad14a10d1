"""Settings for all tests."""

import gc
import os

if os.environ.get("PYTEST_XDIST_WORKER"):
    # Every core has a test of its own. PyTorch reads it when it is imported, here and in processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.tiers import ALL

# Times vary on a busy machine. `make test` draws 25 examples, the same every time, so that it is red only for a change;
# the others draw 100 new ones.
settings.register_profile("atoll", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("first", settings.get_profile("atoll"), max_examples=25, derandomize=True)
settings.load_profile("atoll")

gc.disable()  # while tests are collected, a sixth of whose time it would take: all that is made then, stays


def pytest_collection_finish() -> None:
    """Collect garbage again, but never look at what was there before the first test."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember all tests before markers and names choose among them."""
    config.stash[ALL] = tuple(items)
