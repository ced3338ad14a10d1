"""CFLA's methods with its own clients, all of them in every round, on full batches."""

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from agree_shared import Case, answer, as_vector, filled, make_network
from cfla.framework.client.client_fedgroup import ClientFedGroup
from cfla.framework.client.client_fesem import ClientFeSEM
from cfla.framework.client.client_flhc import ClientFLHC
from cfla.framework.client.client_ifca import ClientIFCA
from cfla.framework.server.server_fedgroup import ServerFedGroup
from cfla.framework.server.server_fesem import ServerFeSEM
from cfla.framework.server.server_flhc import ServerFLHC
from cfla.framework.server.server_ifca import ServerIFCA
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Network(nn.Module):
    """The network as a class that needs no arguments, which CFLA makes its models of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_network()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def make_server(case: Case, server: Any, client: Any, module: Network, told: dict[str, Any], folder: str) -> Any:
    """Return CFLA's server with all its clients, who train on all their samples, and also test on them."""
    first, samples = case.events[0], [TensorDataset(*job.batches[0]) for job in case.events[0]]
    told = told | {
        "device": "cpu",
        "fraction": 1.0,
        "output_dir": folder,
        "local_epochs": case.settings["steps"],
        "learning_rate": case.settings["lr"],
        "batch_size": max(job.samples for job in first),
        "train_fraction": 0.5,  # with no samples left for testing, FL+HC's clients fail
        "optimizer": None,
        "criterion": None,
    }
    clients = [client(job.client, own, told, folder) for job, own in zip(first, samples, strict=True)]
    for one, own in zip(clients, samples, strict=True):
        one.train_loader = one.test_loader = DataLoader(own, batch_size=len(own))
    made = server(module, clients[0].test_loader, told)
    made.set_clients(clients)
    return made


def run_ifca(case: Case) -> list[Tensor]:
    """Return all centres after each round."""
    with tempfile.TemporaryDirectory() as folder:
        told = {"rounds": 1, "num_clusters": len(case.start)}
        server = make_server(case, ServerIFCA, ClientIFCA, Network(), told, folder)
        server.cluster_centers = [centre_of(vector) for vector in case.start]  # CFLA's own are all the same
        return [train_round(server) for _ in case.events]


def centre_of(vector: Tensor) -> dict[str, Tensor]:
    return {f"layers.{name}": tensor.clone() for name, tensor in filled(vector).state_dict().items()}


def vector_of(centre: Mapping[str, Tensor]) -> Tensor:
    module = Network()
    module.load_state_dict(centre)
    return as_vector(module)


def train_round(server: Any) -> Tensor:
    centres, _ = server.train(verbose=False)
    return torch.cat([vector_of(centre) for centre in centres])


class RecordingFLHC(ServerFLHC):
    """CFLA's, which trains one cluster after the other: it keeps each client's model after each round of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.models: dict[int, list[Tensor]] = defaultdict(list)

    def federated_learning(self, model: Network, clients_subset: list[Any], **named: Any) -> Any:
        result = super().federated_learning(model, clients_subset, **named)
        self.record(result[0], clients_subset)
        return result

    def hierarchical_clustering(self, updates: Any) -> Any:
        self.record(self.global_model, self.clients)  # that the round of clustering leaves as it is
        return super().hierarchical_clustering(updates)

    def record(self, model: Network, clients: list[Any]) -> None:
        for client in clients:
            self.models[client.client_id].append(as_vector(model))


def run_flhc(case: Case) -> list[Tensor]:
    """Return all clients' models after each round."""
    warmup = case.settings["warmup"]
    rounds = {"initial_rounds": warmup, "cluster_rounds": len(case.events) - warmup - 1}
    with tempfile.TemporaryDirectory() as folder:
        told = rounds | case.settings["told"]
        server = make_server(case, RecordingFLHC, ClientFLHC, started(case), told, folder)
        server.train()
        own = [server.models[client] for client in range(case.clients)]
        return [torch.cat(models) for models in zip(*own, strict=True)]


def started(case: Case) -> Network:
    module = Network()
    module.load_state_dict(centre_of(case.start))
    return module


class Recording:
    """Keeps all clients' models after each round, instead of CFLA's tables of tests."""

    clients: list[Any]
    cluster_centers: list[dict[str, Tensor]]
    R: list[int]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.models: list[Tensor] = []

    def _eval_and_log(self, round_idx: int, selected_ids: set[int]) -> None:
        self.models.append(torch.cat([vector_of(self.cluster_centers[self.R[c.client_id]]) for c in self.clients]))


class RecordingFeSEM(Recording, ServerFeSEM):
    """CFLA's as it stands."""


class FeSEM(RecordingFeSEM):
    """With a first E-step: its centres are all the same, so that all clients would go to the first."""

    def _aggregate(self, client_states: dict[int, dict[str, Tensor]]) -> None:
        if not self.models:
            rows = torch.stack([client.get_flat_params() for client in self.clients])
            self.R = group(rows, self.num_clusters)
        super()._aggregate(client_states)


def group(rows: Tensor, groups: int) -> list[int]:
    labels: list[int] = KMeans(groups, n_init=10, random_state=0).fit_predict(rows.numpy()).tolist()
    return labels


def run_fesem(case: Case) -> list[Tensor]:
    told = {"rounds": len(case.events), "num_clusters": case.settings["clusters"]}
    server = FeSEM if case.settings["put_right"] else RecordingFeSEM
    return run_recording(case, server, ClientFeSEM, told)


def run_recording(case: Case, server: Any, client: Any, told: dict[str, Any]) -> list[Tensor]:
    """Return all clients' models after each round."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_server(case, server, client, started(case), told, folder)
        made.train(verbose=False)
        models: list[Tensor] = made.models
        return models


class RecordingFedGroup(Recording, ServerFedGroup):
    """CFLA's as it stands."""


class FedGroup(RecordingFedGroup):
    """With the paper's groups: by the cosines of clients' updates to the leading directions of all (EDC)."""

    def _collect_params_and_cluster(self) -> dict[int, list[Any]]:
        for client in self.clients:
            client.train(self.global_model)
        updates = torch.stack([as_vector(client.local_model) for client in self.clients]) - as_vector(self.global_model)
        directions = torch.linalg.svd(updates, full_matrices=False)[2][: self.args["groups"]]
        cosines = nn.functional.cosine_similarity(updates[:, None], directions[None], dim=2)
        clusters: dict[int, list[Any]] = defaultdict(list)
        for client, label in zip(self.clients, group(cosines, self.args["groups"]), strict=True):
            clusters[label].append(client)
        return dict(clusters)


def run_fedgroup(case: Case) -> list[Tensor]:
    """Take part in one more round than Atoll's groups: the first makes what they begin at, the mean of first models."""
    told = {"initial_rounds": 0, "cluster_rounds": len(case.events), "groups": case.settings["groups"]}
    server = FedGroup if case.settings["put_right"] else RecordingFedGroup
    return run_recording(case, server, ClientFedGroup, told)


if __name__ == "__main__":
    answer({"ifca": run_ifca, "flhc": run_flhc, "fesem": run_fesem, "fedgroup": run_fedgroup})
