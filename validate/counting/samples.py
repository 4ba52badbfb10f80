"""Samples: the arguments of one forward pass, made from the signature of a class and its configuration.

Each argument has one rule, which either makes it, or says that this configuration does without. An argument
without a rule that has no default makes a class unsupported. Some classes give arguments a default that they cannot
do without: where a pass fails, it is tried with those too.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from profiles.errors import InputError
from validate.counting.arguments import ABSENT, NEEDED, RULES, SPARE
from validate.counting.sizes import Request
from validate.counting.specs import CLASSES, prompt

NOTHING: Final = inspect.Parameter.empty
ELSEWHERE: Final = tuple(CLASSES["arguments"]["elsewhere"])
"""Ends of the names of arguments that no class needs for a plain pass."""


def samples_of(request: Request) -> Iterator[dict[str, Any]]:
    """Yield the arguments of one forward pass, and if they differ those with arguments that often are left out.

    Raises:
        InputError: an argument has neither a rule nor a default, a key that its rule needs is missing, or the
            pixels are no whole tokens.
    """
    _check_tokens(request)
    plain = _sample(request, RULES)
    yield plain
    whole = _sample(request, {**RULES, **SPARE})
    if whole.keys() != plain.keys():
        yield whole


def prompts_of(num_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield one prompt without contents, for those that ask for them a prompt of equal tokens."""
    yield prompt(num_tokens, 0, 0)
    yield {"input_ids": torch.full((1, num_tokens), 2)}


def without_rule(kind: type[nn.Module]) -> list[str]:
    """The arguments of a class that no rule makes and whose default is to be left out."""
    parameters = inspect.signature(kind.forward).parameters
    optional = [name for name, parameter in parameters.items() if parameter.default is None]
    return [name for name in optional if name not in {**RULES, **SPARE} and not name.endswith(ELSEWHERE)]


def shapes(sample: Mapping[str, Any]) -> str:
    """The shapes of a sample's arguments, for people."""
    return ", ".join(f"{name} {_shape(value)}" for name, value in sample.items())


def _sample(request: Request, rules: Mapping[str, Any]) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    for name, parameter in list(request.parameters.items())[1:]:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is NOTHING
        rule = rules.get(name) or (SPARE.get(name) if needed else None)
        value = _value(request, rule, needed) if rule else ABSENT
        if value is not ABSENT:
            sample[name] = value
        elif needed:
            raise _without(request, name)
    return sample


def _value(request: Request, rule: Any, needed: bool) -> object:  # noqa: ANN401  a function of a request
    """The argument that a rule makes; none where it lacks a key, and the class gives a default."""
    try:
        return rule(request)
    except InputError:
        if needed:
            raise
        return ABSENT


def _without(request: Request, name: str) -> InputError:
    keys = NEEDED.get(name)
    why = f"it needs one of the keys {', '.join(keys)}" if keys else "no rule makes it"
    where = f"{request.found.file.path}: {request.name}"
    return InputError(f"{where} cannot be called without its argument '{name}': {why}")


def _check_tokens(request: Request) -> None:
    for name, side, patch in (("height", request.height, 1), ("width", request.width, 2)):
        pixels = request.patch[patch] * request.scale
        if side % pixels:
            raise InputError(f"{name} is {side}, must be a multiple of {pixels} pixels, one token")


def _shape(value: object) -> str:
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return f"{len(value)} of {_shape(value[0])}"
    return "x".join(map(str, value.shape)) if isinstance(value, Tensor) else type(value).__name__
