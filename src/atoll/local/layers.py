"""Layers of the models that PyTorch lacks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_AT_ONCE = 1 << 24  # logits of texts that are measured at once


def standardised(inputs: Tensor) -> Tensor:
    """Give each input, [n, ...], mean 0 and standard deviation 1.

    The deviation is at least ``1 / sqrt(numbers)``, so that a blank image stays finite.
    """
    axes = tuple(range(1, inputs.ndim))
    centred = inputs - inputs.mean(dim=axes, keepdim=True)
    spread = centred.square().mean(dim=axes, keepdim=True).sqrt()  # six times faster than torch.std_mean
    return centred / spread.clamp(min=inputs[0].numel() ** -0.5)


def is_watched(module: nn.Module) -> bool:
    """Return whether a module or one of its layers has hooks."""
    return any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in module.modules())


def keeping_statistics(module: nn.Module) -> str:
    """Return which layer keeps running statistics of the data, in words; empty: none does."""
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            return f"layer {name!r} ({type(layer).__name__}) keeps running statistics"
    return ""


class Standardize(nn.Module):
    """Crops images to the centre ``side x side``, and standardises each (`standardised`)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        """Map [n, channels, height, width] to [n, channels, side, side]."""
        top, left = ((size - self.side) // 2 for size in images.shape[2:])
        return standardised(images[:, :, top : top + self.side, left : left + self.side])


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        changes = stride > 1 or inputs != outputs
        around = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)]
        self.around = nn.Sequential(*around if changes else [])

    def forward(self, images: Tensor) -> Tensor:
        """Map [n, inputs, height, width] to [n, outputs, height / stride, width / stride]."""
        return nn.functional.relu(self.way(images) + self.around(images))


def residual(channels: int, outputs: int, width: int, blocks: tuple[int, ...], groups: int) -> nn.Sequential:
    """Return a 3x3 convolution, stages of blocks, and a dense layer; later stages halve sides and double channels."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Block(inputs, width << stage, 2 if stage and not block else 1, groups))
            inputs = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))


class Embedded(nn.Module):
    """Symbols [n, length] as vectors [n, length, width]; rows of numbers [n, length, numbers] by one dense layer."""

    def __init__(self, numbers: int | None, symbols: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Embedding(symbols, width) if numbers is None else nn.Linear(numbers, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the vectors; symbols come as numbers of any type."""
        vectors: Tensor = self.layer(inputs.long() if isinstance(self.layer, nn.Embedding) else inputs)
        return vectors


class Recurrent(nn.Module):
    """An LSTM with a dense layer on its last output."""

    def __init__(self, first: Embedded, embedding: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.first = first
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [n, length, ...] to [n, outputs]."""
        states, _ = self.lstm(self.first(inputs))
        outputs: Tensor = self.last(states[:, -1])
        return outputs


class Attentive(nn.Module):
    """A pre-norm transformer encoder without dropout, with a dense layer on the mean over positions."""

    def __init__(self, first: Embedded, length: int, width: int, heads: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.first = first
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        one = (
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.layers = nn.Sequential(*one)
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [n, length, ...] to [n, outputs]."""
        outputs: Tensor = self.last(self.layers(self.first(inputs) + self.places).mean(dim=1))
        return outputs


class TokenLayers(nn.Module):
    """Maps tokens [n, length], -1 beyond a text's end, to [n, outputs] or to log-probabilities [n, length].

    A batch is shortened to its longest text, and attention is masked beyond the end of each.
    """

    def __init__(self, transformer: nn.Module, causal: bool, padding: int, vocabulary: int) -> None:
        super().__init__()
        self.transformer: Any = transformer
        self._causal = causal
        self._padding = padding
        self._vocabulary = vocabulary

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs; without gradients, in parts, since the logits of a thousand texts take gigabytes."""
        if torch.is_grad_enabled():
            return self._outputs(inputs.long())
        size = max(1, _AT_ONCE // (inputs.shape[1] * self._vocabulary))
        return torch.cat([self._outputs(part) for part in torch.split(inputs.long(), size)])

    def _outputs(self, tokens: Tensor) -> Tensor:
        there = tokens >= 0
        longest = max(2, int(there.sum(dim=1).max()))
        known, short = there[:, :longest], tokens[:, :longest].clamp(min=0)
        ids = short.masked_fill(~known, self._padding)
        logits: Tensor = self.transformer(input_ids=ids, attention_mask=known.long()).logits
        if not self._causal:
            return logits
        own = logits[:, :-1].log_softmax(dim=2).gather(2, short[:, 1:, None]).squeeze(2)
        return nn.functional.pad(own, (1, tokens.shape[1] - longest))
