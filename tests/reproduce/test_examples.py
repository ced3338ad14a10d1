"""Names of runs and of their files, by example."""

from pathlib import Path

from atoll.reproduce.judging import is_of
from atoll.reproduce.kept_runs import kept_file
from atoll.settings.validation import Settings


def test_runs_that_a_claim_selects() -> None:
    assert is_of("IFCA, seed 3", "IFCA")
    assert not is_of("FedUC, time", "FedUC")


def test_the_file_of_a_kept_run() -> None:
    settings = Settings(name="q", rounds=1, label="FedAvg, seed 0")
    kept = kept_file(Path("evidence"), "quickstart", "tiny", settings)
    assert kept == Path("evidence/quickstart/tiny/fedavg-seed-0.json.gz")
