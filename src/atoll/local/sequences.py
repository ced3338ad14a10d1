"""Networks for sequences of symbols, such as characters, or of rows of numbers."""

import torch
from torch import Tensor, nn


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
