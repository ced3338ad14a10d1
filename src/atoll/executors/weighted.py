"""A cohort's clients in one weighted pass, if each takes one step of SGD."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from atoll.aggregation.mean import Combine, average_models, is_weighted_mean
from atoll.aggregation.screening import Screening
from atoll.engine.cohorts import ClusterUpdate, Cohort
from atoll.executors.serial import Serial
from atoll.local.precision import products_in
from atoll.local.rule import LocalRule, made_by
from atoll.local.trainer import Trainer, descend
from atoll.local.weights import is_finite, load_model, read_model
from atoll.support.errors import RunError, blaming
from atoll.support.process import one_thread
from atoll.support.seeds import layers_drawing_from

MOST_SAMPLES = 20_000  # in one pass; a cohort with more is trained client by client


class Weighted:
    """Takes one step on the clients' weighted mean loss, which equals the mean of their own steps.

    With T'' = 1 and SGD, ``sum_i phi_i (w - eta * grad f_i(w)) = w - eta * grad (sum_i phi_i f_i)(w)``: the same
    batches give the same model as training client by client, up to rounding.
    """

    bits = "weighted"

    def __init__(self, trainer: Trainer) -> None:
        """Use this trainer, whose rule and module must be suitable (`why_not_weighted`)."""
        if reason := trainer.why_one_by_one or why_not_weighted(trainer.rule, trainer.module):
            raise ValueError(reason)
        self.trainer = trainer
        self.serial = Serial(trainer)
        self.losses, self.close = self.serial.losses, self.serial.close

    def train(
        self, cohorts: Sequence[Cohort], combine: Combine, screening: Screening | None = None
    ) -> list[ClusterUpdate]:
        """Return each cluster's update, in the order of the cohorts."""
        if screening or not is_weighted_mean(combine):
            return self.serial.train(cohorts, combine, screening)
        return [self._train(cohort) for cohort in cohorts]

    def carries_through(self, combine: Combine) -> bool:
        """Return whether cohorts may go through several intra-cluster rounds without copying the model in between."""
        return is_weighted_mean(combine) and not self.trainer.rule.proximal  # it pulls toward each round's start

    @one_thread()
    def _train(self, cohort: Cohort) -> ClusterUpdate:
        rounds = [replace(cohort, repeat=cohort.repeat + i, repeats=1) for i in range(cohort.repeats)]
        module, told = self.trainer.module, f"event {cohort.event}, cluster {cohort.cluster}: training failed"
        if self.trainer.samples_a_step(cohort.clients) > MOST_SAMPLES:
            return self._train_each(rounds)
        with products_in(self.trainer.precision), blaming(told, RunError):
            load_model(module, cohort.start)
            module.train()
            losses = [self._take_step(each) for each in rounds]
            model = read_model(module, cohort.start)
        if is_finite(model, sum(losses)):
            return ClusterUpdate(model, losses[-1])
        return self._train_each(rounds)  # its error names the client that is not finite

    def _train_each(self, rounds: Sequence[Cohort]) -> ClusterUpdate:
        """Train client by client, one intra-cluster round after the other."""
        average = ClusterUpdate(rounds[0].start, math.nan)
        for each in rounds:
            (average,) = self.serial.train([replace(each, start=average.model)], average_models)
        return average

    def _take_step(self, cohort: Cohort) -> float:
        """Take the clients' step from the model in the module; return their mean loss."""
        tasks, trainer = cohort.tasks, self.trainer
        trainer.renew_buffers()
        rows = [trainer.draw_rows(task)[0] for task in tasks]
        sizes = np.array([len(own) for own in rows])
        shares = cohort.weights / cohort.weights.sum()
        inputs, targets = trainer.batches.gather(np.concatenate(rows))
        weights = torch.from_numpy(np.repeat(shares / sizes, sizes)).to(inputs)
        if trainer.dense:
            outputs = trainer.dense.step(inputs, targets, trainer.rule.lr_at(cohort.round), weights)
            losses = trainer.batches.losses(outputs, targets)
            return float(losses @ weights.to(losses))  # targets may be of another precision
        with layers_drawing_from(trainer.seed, "layers", *tasks[0].key):
            losses = trainer.batches.losses(trainer.outputs(inputs), targets)
            parameters = dict(trainer.module.named_parameters())
            return descend(trainer.rule, parameters, tasks[0], [losses @ weights.to(losses)], trainer.by_hand)[0]


def why_not_weighted(rule: LocalRule, module: nn.Module) -> str:
    """Return why one weighted pass would differ from the mean over clients; empty if it would not."""
    if rule.steps != 1:
        return f"local.steps = {rule.steps}: must be 1"
    if type(made_by(rule)) is not torch.optim.SGD or rule.carry_moments:
        return "the optimizer must be SGD, whose step is linear in the gradient, and keep no state between rounds"
    for layer in module.modules():
        rate = getattr(layer, "dropout", 0)  # of recurrent and attention layers
        if isinstance(layer, _DropoutNd | _NormBase) or (isinstance(rate, float) and rate > 0):
            return f"the model has a layer {type(layer).__name__}, whose output depends on the rest of the batch"
    return ""
