"""A residual network with group instead of batch normalisation, whose statistics cannot be averaged."""

from torch import Tensor, nn


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
