"""FedAvg in FedJAX, as its algorithm `fed_avg` and its examples have it; the models in Haiku, channels last."""

import sys
from typing import Any

import jax

for moved in ("map", "leaves", "flatten", "unflatten", "structure"):  # newer versions have these elsewhere
    if not hasattr(jax, f"tree_{moved}"):
        setattr(jax, f"tree_{moved}", getattr(jax.tree, moved))

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402
from shared import client_arrays, read_case, work  # noqa: E402

# PyTorch's initial numbers, so that models move alike.
INIT = hk.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


def linear(units: int, entering: int) -> Any:
    return hk.Linear(units, w_init=INIT, b_init=first_biases(entering))


def convolution(channels: int, entering: int, padding: str) -> Any:
    return hk.Conv2D(channels, 5, padding=padding, w_init=INIT, b_init=first_biases(25 * entering))


def first_biases(entering: int) -> Any:
    return hk.initializers.RandomUniform(-(entering**-0.5), entering**-0.5)


def standardize(images: Any) -> Any:
    images = images[:, 2:30, 2:30]
    centre = images.mean(axis=(1, 2, 3), keepdims=True)
    spread = images.std(axis=(1, 2, 3), keepdims=True)
    return (images - centre) / jnp.maximum(spread, images[0].size ** -0.5)


def mlp(x: Any) -> Any:
    return hk.Sequential([hk.Flatten(), linear(200, 784), jax.nn.relu, linear(10, 200)])(x)


def cnn(x: Any) -> Any:
    pool = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    blocks = [convolution(20, 1, "VALID"), pool, jax.nn.relu, convolution(50, 20, "VALID"), pool, jax.nn.relu]
    dense = [hk.Flatten(), linear(500, 800), jax.nn.relu, linear(10, 500)]
    return hk.Sequential([*blocks, *dense])(x)


def alexnet(x: Any) -> Any:
    pool = hk.MaxPool((1, 3, 3, 1), (1, 2, 2, 1), "VALID")
    blocks = [convolution(64, 3, "SAME"), pool, jax.nn.relu, convolution(64, 64, "SAME"), pool, jax.nn.relu]
    dense = [hk.Flatten(), linear(384, 2304), jax.nn.relu, linear(192, 384), jax.nn.relu, linear(10, 192)]
    return hk.Sequential([standardize, *blocks, *dense])(x)


def make_model(case: work.Case, sample: dict[str, Any]) -> Any:
    network = {"mlp": mlp, "cnn": cnn, "alexnet": alexnet}[case.model]
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(lambda batch: network(batch["x"])),
        sample_batch=sample,
        train_loss=lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
    )


def main() -> None:
    case = read_case(sys.argv[-1])
    jax.config.update("jax_platforms", case.device)
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if case.precision == "tf32" else "highest")
    arrays: list[dict[str, Any]] = [{"x": np.moveaxis(x, 1, -1).copy(), "y": y} for x, y in client_arrays(case)]
    clients = [(b"%d" % number, fedjax.ClientDataset(each)) for number, each in enumerate(arrays)]
    model = make_model(case, {name: array[:1] for name, array in arrays[0].items()})
    algorithm = fed_avg.federated_averaging(
        grad_fn=fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(learning_rate=case.lr),
        server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=case.batch_size, num_epochs=case.epochs),
    )
    rng = jax.random.PRNGKey(0)
    first = model.init(rng)
    state = algorithm.init(first)

    def moved() -> float:
        pairs = zip(jax.tree_util.tree_leaves(first), jax.tree_util.tree_leaves(state.params), strict=True)
        return float(sum(jnp.square(one - other).sum() for one, other in pairs) ** 0.5)

    pace = work.WorkRate(sum(leaf.size for leaf in jax.tree_util.tree_leaves(first)), moved)
    while pace.next_round():
        rng, *keys = jax.random.split(rng, 1 + case.clients)
        cohort = [(*client, key) for client, key in zip(clients, keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)  # JAX computes in the background


if __name__ == "__main__":
    main()
