"""Settings for all tests."""

import os

from hypothesis import settings

# Times vary on a busy machine; in CI the same examples are drawn every time, so that it is red only for a reason.
settings.register_profile("atoll", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("atoll")
