"""Columns, labels and settings of runs, by example."""

import numpy as np

from atoll.runs.columns import column_title, is_built_in, is_share, rises
from atoll.runs.fingerprint import flatten, free_settings
from atoll.runs.named_probes import spread_of
from atoll.runs.result import columns_of
from atoll.runs.titles import without_seed


def test_columns() -> None:
    built_in = ("test_accuracy", "refused_too_large", "personal_accuracy")
    assert [is_built_in(name) for name in built_in] == [True, True, False]
    shares = ("test_accuracy", "client_accuracy_std", "gap_std")
    assert [is_share(name) for name in shares] == [True, True, False]
    rising = ("worst_cluster_accuracy", "client_score", "ari", "cluster_perplexity")
    assert [rises(name) for name in rising] == [True, True, True, False]
    assert column_title("worst_client_score") == "Worst client score"
    assert column_title("p10_client_score") == "10th percentile of client score"
    assert column_title("client_score_std") == "Standard deviation of client score"


def test_values_over_clients_and_rows() -> None:
    assert spread_of("own_accuracy", np.array([0.0, 1.0]))["worst_own_accuracy"] == 0.0
    columns = columns_of([{"round": 0}, {"round": 1, "cluster_accuracy": [0.5, None]}])
    assert np.array_equal(columns["cluster_accuracy"], [[np.nan, np.nan], [0.5, np.nan]], equal_nan=True)


def test_settings_and_labels() -> None:
    assert sorted(key for key in free_settings() if key.startswith("data.")) == ["data.fetch", "data.root"]
    assert flatten({"local": {"lr": 0.1}}) == {"local.lr": 0.1}
    assert (without_seed("IFCA, seed 3"), without_seed("IFCA (seed 3)")) == ("IFCA", "IFCA")
