"""Methods against code that nobody here wrote: the same models as FedLab, CFLA, Flower and APPFL make.

The libraries are installed in an environment of their own; what cannot be installed is skipped with the reason.
ATOLL_PEERS names a folder in which the environment is kept from run to run, as `benchmarks/agreement.py --envs` does.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
OWN = ("agreement", "agreement_cases", "speed")
# FedLab's weights are in single precision whatever its models are in.
BOUNDS = {"FedLab": 1e-6, "CFLA": 1e-12, "Flower": 1e-12, "APPFL": 1e-12}
FAILURES = {
    "FedLab": "IndexError: list index out of range",  # its IFCA: `payload[1:0]` leaves no model to pick from
    "Flower": "TypeError: aggregate_krum() missing 1 required positional argument: 'to_keep'",  # its Krum alone
}
"""What a library's own slip makes of a comparison that is recorded as failing."""


@pytest.fixture(scope="module")
def agreement() -> Iterator[ModuleType]:
    """Import it, and forget what it imports from `benchmarks` afterwards."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("agreement")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        for name in OWN:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def environment(agreement: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return the environment's folder, and why each library cannot be had."""
    folder = Path(os.environ.get("ATOLL_PEERS") or tmp_path_factory.mktemp("peers"))
    return folder, agreement.install(folder)


@pytest.mark.slow
@pytest.mark.parametrize("library", list(BOUNDS))
def test_other_libraries_make_the_same_models(
    agreement: ModuleType, environment: tuple[Path, dict[str, str]], library: str
) -> None:
    folder, reasons = environment
    if reasons[library]:
        pytest.skip(reasons[library])
    chosen = [one for one in agreement.comparisons() if one.library == library]
    for found in agreement.compare(agreement.LIBRARIES[library], chosen, folder):
        told = found.comparison
        assert not found.skipped, found.skipped
        if told.outcome == "fails":
            assert found.error == FAILURES[library]
        elif told.outcome == "differs":
            assert found.difference > 1e-3, f"{library}'s {told.name} no longer differs: {told.why}"
        else:
            assert not found.error, f"{library}'s {told.name}: {found.error}"
            assert found.difference < BOUNDS[library], f"{library}'s {told.name}"


@pytest.mark.more
def test_learned_clusters_are_compared_client_by_client(agreement: ModuleType) -> None:
    learned = [one for one in agreement.comparisons() if one.method.regroup and one.outcome == "agrees"]
    assert {one.name for one in learned} == {"flhc", "fesem", "fedgroup"}
    for one in learned:
        last = agreement.run_atoll(one.method, one.population)[-1].reshape(10, 75)
        assert 1 < len(np.unique(last, axis=0)) < 10


@pytest.mark.more
def test_a_library_that_cannot_be_had_is_a_reason(agreement: ModuleType, tmp_path: Path) -> None:
    chosen = agreement.comparisons()[:1]
    (found,) = agreement.compare(agreement.LIBRARIES["FedLab"], chosen, tmp_path, "pip install x failed")
    assert found.skipped == "pip install x failed"
    assert "| fedavg | FedLab 1.3.0 | pip install x failed | 10 |  |" in agreement.as_markdown([found])


@pytest.mark.more
def test_cases_hold_what_atoll_did(agreement: ModuleType, tmp_path: Path) -> None:
    """The batches are those of Atoll's own steps: they make Atoll's models by hand."""
    plain = agreement.comparisons()[0]
    agreement.write_case(tmp_path / "a.npz", plain.method, plain.population, {"method": "fedavg"})
    stored = np.load(tmp_path / "a.npz")
    assert stored["start"].shape == (8 * 6 + 6 + 6 * 3 + 3,)
    ours = agreement.run_atoll(plain.method, plain.population)
    assert ours.shape == (10, 75)
    assert not np.array_equal(ours[0], stored["start"])
