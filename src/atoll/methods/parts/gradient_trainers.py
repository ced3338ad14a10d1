"""Trainers whose local steps need gradients at several models: pFedMe's, APFL's and Per-FedAvg's."""

from copy import copy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn, zeros_like

from atoll.aggregation.mean import mean
from atoll.local.models import Model
from atoll.local.task import ClientTask, ClientUpdate
from atoll.local.trainer import Trainer, descend
from atoll.local.weights import load_model, read_model, trained_of
from atoll.methods.parts.server_optimizers import buffers_of


class GradientTrainer(Trainer):
    """A `Trainer` whose clients keep a model of their own, and that tells the gradient at any model."""

    keeps_state = True
    keeps_model = True  # the state is the model

    def parameters_of(self, model: Model) -> Model:
        """Return the trained parameters of a model."""
        return {name: model[name] for name in trained_of(self.module)}

    def gradient(self, model: Model, x: Tensor, y: Tensor) -> tuple[Model, float, Model]:
        """Return the gradient of a batch's mean loss at a model, by parameter, the loss, and the buffers after it."""
        load_model(self.module, model)
        loaded = trained_of(self.module)
        for each in loaded.values():
            each.grad = None
        loss = self.batches.losses(self.outputs(x), y).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        found = {name: zeros_like(each) if each.grad is None else each.grad for name, each in loaded.items()}
        return found, loss.item(), read_model(self.module, buffers_of(self.module))

    def step(self, lr: float, model: Model, gradient: Model) -> Model:
        """Return a model after a step down a gradient; where it is not to be taken by hand, by the optimiser."""
        if self.by_hand:
            return {name: own.add(gradient[name], alpha=-lr) for name, own in model.items()}
        moved = {name: nn.Parameter(own.clone()) for name, own in model.items()}
        for name, parameter in moved.items():
            parameter.grad = gradient[name]
        self.rule.optimizer(moved.values(), lr).step()
        return {name: parameter.detach() for name, parameter in moved.items()}

    def finish(self, task: ClientTask, trained: Model, own: Model, losses: list[float]) -> ClientUpdate:
        """Return the update: the whole model with what was trained, and the client's own model as its state."""
        loss = sum(losses) / len(losses)
        self.require_finite(task, trained | {f"{name}@": each for name, each in own.items()}, loss)
        return ClientUpdate(self._whole(task, trained), loss, self._whole(task, own) | own)

    def _whole(self, task: ClientTask, trained: Model) -> Model:
        load_model(self.module, trained)  # also under a second name of a parameter
        return read_model(self.module, task.start)


class MoreauTrainer(GradientTrainer):
    """pFedMe's client: for each batch theta nears ``argmin f + lambda / 2 * ||theta - w||^2``, then w moves to it."""

    def __init__(self, *given: Any, penalty: float, inner_steps: int, inner_lr: float, **named: Any) -> None:
        """Set up a `Trainer` with lambda, and the number and the rate of the steps toward each theta."""
        super().__init__(*given, **named)
        self.penalty, self.inner_steps = penalty, inner_steps
        self.inner = replace(self.rule, lr=inner_lr, rates=(), lr_decay=1.0, proximal=penalty)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return w, with the last theta as the client's state."""
        theta = trained_of(self.module)
        w, losses, pace = self.parameters_of(task.start), [], self.rule.lr_at(task.round) * self.penalty
        with self.at_work(task, task.start):
            for x, y in self.draw_batches(task):
                again = (self.batches.losses(self.outputs(x), y).mean() for _ in range(self.inner_steps))
                losses.append(descend(self.inner, theta, replace(task, start=w), again, self.by_hand)[0])
                w = {name: own.lerp(theta[name].detach(), pace) for name, own in w.items()}
        return self.finish(task, w, self.parameters_of(read_model(self.module)), losses)


class MixedTrainer(GradientTrainer):
    """APFL's client: steps on w, and steps on v, which it keeps, at the mixed model ``alpha v + (1 - alpha) w``."""

    def __init__(self, *given: Any, alpha: float, **named: Any) -> None:
        """Set up a `Trainer` with the share of v, and the initial model as the first v."""
        super().__init__(*given, **named)
        self.alpha, self.initial = alpha, read_model(self.module)

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return w, with the mixed model as the client's state, and v beside it as ``parameter@v``."""
        w, losses, lr = self.parameters_of(task.start), [], self.rule.lr_at(task.round)
        v = {name: (task.state or {}).get(f"{name}@v", self.initial[name]) for name in w}
        buffers = {name: task.start[name] for name in buffers_of(self.module)}
        own = self._mix(task.state or self.initial, buffers)
        with self.at_work(task, task.start):
            for x, y in self.draw_batches(task):
                of_mixed, _, own = self.gradient(self._mix(v, w) | own, x, y)
                of_w, loss, buffers = self.gradient(w | buffers, x, y)
                v, w = self.step(lr * self.alpha, v, of_mixed), self.step(lr, w, of_w)
                losses.append(loss)
        own |= self._mix(v, w) | {f"{name}@v": each for name, each in v.items()}
        return self.finish(task, w | buffers, own, losses)

    def _mix(self, v: Model, w: Model) -> Model:
        return mean([(self.alpha, {name: v[name] for name in w}), (1 - self.alpha, w)])


class MetaTrainer(GradientTrainer):
    """Per-FedAvg's client: descends the loss that a model has after one step of its own on the client's data."""

    def __init__(self, *given: Any, inner_lr: float, delta: float | None, **named: Any) -> None:
        """Set up a `Trainer` with the rate alpha of that step, and the length of differences; None: first order."""
        super().__init__(*given, **named)
        self.inner_lr, self.delta = inner_lr, delta

    def train(self, task: ClientTask) -> ClientUpdate:
        """Return w, with the received model after one step on all of the client's data as its state."""
        w, losses, lr = self.parameters_of(task.start), [], self.rule.lr_at(task.round)
        buffers = Model()
        with self.at_work(task, task.start):
            for first, second, third in self._triples(task):
                of_w, _, buffers = self.gradient(w | buffers, *second)
                ahead, loss, _ = self.gradient(self.step(self.inner_lr, w, of_w), *first)
                step = ahead if self.delta is None else self._times_hessian(w, ahead, self.delta, *third)
                w = self.step(lr, w, step)
                losses.append(loss)
            of_start, _, seen = self.gradient(task.start, *self.batches.gather(self.samples_of(task)))
            own = self.step(self.inner_lr, self.parameters_of(task.start), of_start) | seen
        return self.finish(task, w | buffers, own, losses)

    def _triples(self, task: ClientTask) -> Any:
        """Return three batches for each local step; the first ones are those of `Trainer`."""
        steps, drawing = self.steps_of(task.client), copy(self)
        drawing.rule = replace(self.rule, steps=3 * steps, epochs=None)
        drawn = list(drawing.draw_batches(task))
        return zip(drawn[:steps], drawn[steps : 2 * steps], drawn[2 * steps :], strict=True)

    def _times_hessian(self, w: Model, ahead: Model, delta: float, x: Tensor, y: Tensor) -> Model:
        """Return ``(I - alpha * H(w)) ahead``, with H's product as a central difference of gradients."""
        sides = ({name: own.add(ahead[name], alpha=far) for name, own in w.items()} for far in (delta, -delta))
        above, below = (self.gradient(side, x, y)[0] for side in sides)
        shift = self.inner_lr / (2 * delta)
        return {name: each.sub(above[name] - below[name], alpha=shift) for name, each in ahead.items()}
