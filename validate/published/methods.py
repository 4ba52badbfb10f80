"""The strategy, with its parameters, of each published method; where it may be several, the fastest counts.

Methods are read by rule, so that a new row of a known kind needs no new line here. Where the released code of a
source runs one more synchronous step than its "warm-up" says, ``warmup_steps`` is the number that it runs.

Source: the released code of DistriFusion, PipeFusion and xDiT; see each constant.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

from profiles.software.stacks import Stack, load_stack
from strategies.plans.workloads import ONE_PREDICTION
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.points import candidates, sampler
from validate.published.clusters import changed_stack
from validate.published.rows import READINGS, SamplingRow, Uncovered

IN_GRAPHS: Final = replace(
    load_stack(), name="eager in CUDA graphs", forward_operator_s=0.0, backward_operator_s=0.0
)
"""Source: DistriFusion's released code, which captures each step of its own runs and of its baselines."""
FIRST_RELEASE: Final = "PipeFusion"
"""Beginning of its source; it posts the next receive before it computes, xDiT after."""
BEST_PATCHES: Final = (2, 4, 8, 16, 32)
"""Numbers of patches, of which PipeFusion's first release publishes the fastest. Source: PipeFusion v1, section 5."""
GATHER_LAYERS: Final = {"sdxl": 60}
"""Gathers launched together; 1 in the first release's port to transformers."""
SEQUENCE: Final = ("sp_ring", "sp_ulysses")
"""Methods that keep the keys and values of all layers in PipeFusion's first release (its Figure 7)."""
NORMS: Final = ("separate GN", "sync GN")
"""Other ways to gather a group norm's statistics than DistriFusion's own."""
NAMES: Final = {word: name for name, words in READINGS["degrees"].items() for word in words}
DEGREE: Final = re.compile(rf"(?<![a-z])({'|'.join(sorted(NAMES, key=len, reverse=True))})\s*=?\s*(\d+)")
PURE: Final = ("ulysses", "ring", "tensor")


def samplers(row: SamplingRow, scenario: SamplingScenario) -> list[Sampler]:
    """The samplers that a row may have run; of several, the row's number is that of the fastest that fits.

    Raises:
        Uncovered: no strategy is what the row ran.
        InfeasibleError: the strategy does not apply to the scenario.
    """
    if "cache" in row.method:
        raise Uncovered("a cache skips steps or layers")
    method = row["method"]
    if not _read(row["method_config"]) or method.startswith("distrifusion"):
        if method in READERS:
            return list(READERS[method](row, scenario))
        if method in READINGS["methods"]:
            name, asked = READINGS["methods"][method]
            kept = method in SEQUENCE and row["source"].startswith(FIRST_RELEASE)
            return [sampler(name, **asked, **({"keys_values": "kept"} if kept else {}))]
    return [_of_degrees(row)]


def stack_of(row: SamplingRow) -> Stack:
    """The software stack that a row was run by."""
    name, _, changes = row.stack.partition(" ")
    if changes:
        return changed_stack(name, changes)
    return IN_GRAPHS if row["source"].startswith("DistriFusion") else load_stack(name)


def guidance(row: SamplingRow, model_guidance: str) -> str:
    """How the predictions with and without the prompt are made, before any guidance degree divides them."""
    said = row["cfg"]
    if row["method"].endswith("cfg split"):
        return "parallel"
    if said.startswith("yes"):
        return "batch"
    if said.startswith(("no", "embedded")) or (not said and model_guidance in ONE_PREDICTION):
        return "none"
    if not said:
        return model_guidance
    raise Uncovered("whether guidance is on is not said")


def _warmup(row: SamplingRow) -> int:
    said = row["method_config"]
    if run := re.search(r"(\d+) sync", said):
        return int(run[1])
    if more := re.search(r"warmup\s*=?\s*(\d+)\(\+1\)", said):
        return int(more[1]) + 1
    warmups: Mapping[str, int] = READINGS["warmups"]
    return next(steps for source, steps in warmups.items() if row["source"].startswith(source))


def _late(row: SamplingRow) -> dict[str, Any]:
    """Warm-up and receives of xDiT's pipelines."""
    return {"warmup_steps": _warmup(row), "receive": "after"}


def _distrifusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    if row["method_config"] in NORMS:
        raise Uncovered("the group norms' statistics are gathered in another way")
    gathers = GATHER_LAYERS.get(scenario.model.name, 1)
    yield sampler("distrifusion", warmup_steps=_warmup(row), gather_layers=gathers)


def _pipefusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """PipeFusion with each number of patches of which the best was published; xDiT's default is the pipeline degree."""
    if not row["source"].startswith(FIRST_RELEASE):
        yield sampler("pipefusion", **_late(row))
        return
    for patches in BEST_PATCHES:
        if patches <= scenario.rows:
            yield sampler("pipefusion", patches=patches, warmup_steps=_warmup(row), receive="before")


def _usp(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """The degrees that the row gives, else all candidates."""
    if _read(_clause(row)):
        yield _of_degrees(row)
    else:
        yield from candidates("usp", scenario)


def _best(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """XDiT's pure methods and their products on all GPUs."""
    yield from map(sampler, PURE)
    if scenario.workload.predictions == scenario.workload.num_gpus:
        yield sampler("hybrid", guidance_degree=2)
    for name in ("pipefusion", "hybrid"):
        for one in candidates(name, scenario):
            yield replace(one, **_late(row))  # type: ignore[type-var]  # samplers are frozen dataclasses


Reader = Callable[[SamplingRow, SamplingScenario], Iterator[Sampler]]
READERS: Final[Mapping[str, Reader]] = {
    "distrifusion": _distrifusion,
    "distrifusion+cfg split": _distrifusion,
    "hybrid(best)": _best,
    "pipefusion": _pipefusion,
    "usp": _usp,
}


def _read(text: str) -> dict[str, int]:
    return {NAMES[word]: int(degree) for word, degree in DEGREE.findall(text.lower())}


def _clause(row: SamplingRow) -> str:
    """The method in a row's note for its number of GPUs: after that number and a colon, or up to a larger number."""
    note = row["note"].lower()
    if of := re.search(rf"(?<!\d){row.num_gpus}: ([^;:]*)", note):
        return of[1]
    curve = re.search(r"up to (\d+) gpus hybrid=(\w+) curve", note)
    if curve and row.num_gpus and row.num_gpus <= int(curve[1]):
        return f"{curve[2]}={row.num_gpus}"
    return ""


def _degrees(row: SamplingRow) -> dict[str, int]:
    """The degrees that a row gives: in its method, or for its number of GPUs in its note."""
    found = _read(row.method) or _read(_clause(row))
    if not found:
        raise Uncovered(f"method '{row.method}' is no strategy here, or its degrees are not said")
    if prod(found.values()) != row.num_gpus:
        words = " * ".join(f"{name}({degree})" for name, degree in found.items())
        raise Uncovered(f"{words} = {prod(found.values())} are not {row.num_gpus} GPUs")
    return found


def _of_degrees(row: SamplingRow) -> Sampler:
    """The strategy of the degrees above 1 that a row gives."""
    above = {name: degree for name, degree in _degrees(row).items() if degree > 1}
    degrees = {f"{name}_degree": degree for name, degree in above.items()}
    if "data" in above:
        raise Uncovered("data parallelism draws several images; the latency is one image's")
    if not above:
        return sampler("single")
    if set(above) == {"ulysses", "ring"}:
        return sampler("usp", **degrees)
    if set(above) == {"pipeline"}:
        return sampler("pipefusion", **_late(row))
    if len(above) == 1 and set(above) <= set(PURE):
        return sampler(*above)
    return sampler("hybrid", **({"guidance_degree": 1} | degrees), **_late(row))
