"""A transformer of Hugging Face's on tokens, as Atoll's losses take its outputs."""

from typing import Any

import torch
from torch import Tensor, nn

_AT_ONCE = 1 << 24  # logits of texts that are measured at once


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
