"""What of a model travels. Its other tensors stay where they are, and are no part of the models of a run."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from atoll.support.errors import InputError


class Shared(nn.Parameter):
    """A parameter that all copies of its module have in common, such as those of threads."""

    def __deepcopy__(self, memo: object) -> "Shared":
        return self


def frozen(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that training never changes: those with ``requires_grad = False``."""
    tensors = module.state_dict(keep_vars=True).items()
    return tuple(name for name, tensor in tensors if isinstance(tensor, nn.Parameter) and not tensor.requires_grad)


def staying(module: nn.Module, travels: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the parameters and buffers that do not travel.

    `travels` is `all`, `trainable`, which leaves frozen parameters out, or patterns such as ``"features.*"``.
    """
    names = tuple(module.state_dict())
    if travels == "all":
        return ()
    if travels == "trainable":
        return frozen(module)
    if isinstance(travels, str):
        raise InputError(f"model.travels = {travels!r}: must be 'all', 'trainable' or a list of names or patterns")
    for pattern in travels:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:6]) + ", ..." * (len(names) > 6)
            raise InputError(f"model.travels: {pattern!r} matches none of the model's tensors, {some}")
    return tuple(name for name in names if not any(fnmatchcase(name, pattern) for pattern in travels))


def norms(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters and buffers of all normalisation layers."""
    kinds = nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm
    layers = {name for name, layer in module.named_modules() if isinstance(layer, kinds)}
    return tuple(name for name in module.state_dict() if _layer_of(name) in layers)


def layers_of(module: nn.Module) -> list[str]:
    """Return the names of the layers that have parameters, in order."""
    tensors = module.state_dict(keep_vars=True).items()
    return list(dict.fromkeys(_layer_of(name) for name, tensor in tensors if isinstance(tensor, nn.Parameter)))


def cut_before(module: nn.Module, layer: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the parameters and buffers before this one of `layers_of`, and from it on."""
    names, layers = tuple(module.state_dict()), layers_of(module)
    place = [*map(_layer_of, names)].index(layers[layer]) if layer < len(layers) else len(names)
    return names[:place], names[place:]


def _layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def require_whole(module: nn.Module, names: Collection[str], told: str) -> None:
    """Refuse `names` that part what layers share and train: a tensor of which they have one name and not another."""
    first, fixed = dict[int, str](), frozen(module)
    for name, tensor in module.state_dict(keep_vars=True).items():
        other = name if name in fixed else first.setdefault(id(tensor), name)
        if (name in names) != (other in names):
            raise InputError(f"{told}: {other!r} and {name!r} are one tensor of the model, which cannot be parted")
