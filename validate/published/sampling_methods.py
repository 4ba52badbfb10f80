"""What a published method is here: a strategy with its parameters, or several of which the fastest counts.

Methods are read by rule, so that a new row of a known kind needs no new line here. Where the released code of a
source runs one synchronous step more than its "warm-up" says, ``warmup_steps`` is the number that it runs.

Source: DistriFusion's and PipeFusion's released code, xDiT's; see each constant.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from strategies.registry import all_samplers, make_sampler
from strategies.sampling.distrifusion import DistriFusion
from strategies.sampling.hybrid import Hybrid
from strategies.sampling.naive_patch import NaivePatch
from strategies.sampling.pipefusion import PipeFusion
from strategies.sampling.ring import Ring
from strategies.sampling.single import Single
from strategies.sampling.sync_patch import SyncPatch
from strategies.sampling.tensor import TensorParallel
from strategies.sampling.ulysses import Ulysses
from strategies.sampling.usp import USP
from strategies.scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.published.sampling_rows import SamplingRow, Uncovered

WARMUPS: Final = (("DistriFusion", 5), ("PipeFusion", 2), ("", 0))
"""Synchronous steps that are run where a row says nothing: DistriFusion's setting is 4, PipeFusion's first release's 1,
and both run one more. xDiT's charts do not say: its README's example asks for none, and on its L40s a pipeline at 2048
px takes 3.16 s, where one serial step and 19 of 20 others could not take less than 4.0."""
FIRST_RELEASE: Final = "PipeFusion"
"""Its source; it posts the next receive before it computes, xDiT after."""
BEST_PATCHES: Final = (2, 4, 8, 16, 32)
"""Of which PipeFusion's first release prints the fastest. Source: PipeFusion v1, section 5."""
GATHER_LAYERS: Final = {"sdxl": 60}
"""Gathers launched together; 1 in the first release's port to transformers."""
PLAIN: Final[Mapping[str, type[Sampler]]] = {
    "naive_patch": NaivePatch,
    "original": Single,
    "patch_parallel_sync": SyncPatch,
    "sp_ring": Ring,
    "sp_ulysses": Ulysses,
    "tensor_parallel": TensorParallel,
    "tensor_parallel_sync": TensorParallel,
}
NORMS: Final = ("separate GN", "sync GN")
"""Other ways to gather a group norm's statistics than DistriFusion's own."""
WORDS: Final = {
    "cfg": "guidance",
    "ulysses": "ulysses",
    "u": "ulysses",
    "ring": "ring",
    "r": "ring",
    "pipefusion": "pipeline",
    "pipeline": "pipeline",
    "pp": "pipeline",
    "tp": "tensor",
    "tensor": "tensor",
    "dp": "data",
}
"""Words for a degree of parallelism, and which one it is."""
DEGREE: Final = re.compile(rf"(?<![a-z])({'|'.join(sorted(WORDS, key=len, reverse=True))})\s*=?\s*(\d+)")

Degrees = Mapping[str, int]


def samplers(row: SamplingRow, scenario: SamplingScenario) -> list[Sampler]:
    """Return what a row may have run; the fastest of several that fits is what it printed.

    Raises:
        Uncovered: no strategy is what the row ran.
        InfeasibleError: the strategy does not apply to the scenario.
    """
    _check_eager(row)
    method = row["method"]
    if _read(row["method_config"]) and not method.startswith("distrifusion"):
        return [_of_degrees(_degrees(row), _warmup(row))]
    if method in READERS:
        return list(READERS[method](row, scenario))
    if method in PLAIN:
        return [PLAIN[method]()]
    return [_of_degrees(_degrees(row), _warmup(row))]


def guidance(row: SamplingRow, model_guidance: str) -> str:
    """Return how the predictions with and without the prompt are divided before any degree does it.

    Raises:
        Uncovered: the row does not say whether there is any.
    """
    said = row["cfg"]
    if row["method"].endswith("cfg split"):
        return "parallel"
    if said.startswith("yes"):
        return "batch"
    if said.startswith(("no", "embedded")):
        return "none"
    if not said:
        return model_guidance
    raise Uncovered("whether guidance is on is not said")


def _check_eager(row: SamplingRow) -> None:
    if "compile" in row["method_config"]:
        raise Uncovered("compiled: the costs are of eager kernels")
    if "cache" in row.method:
        raise Uncovered("a cache skips steps or layers")


def _warmup(row: SamplingRow) -> int:
    """Return the synchronous steps that were run."""
    said = row["method_config"]
    if run := re.search(r"(\d+) sync", said):
        return int(run[1])
    if more := re.search(r"warmup\s*=?\s*(\d+)\(\+1\)", said):
        return int(more[1]) + 1
    return next(steps for source, steps in WARMUPS if row["source"].startswith(source))


def _distrifusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    if row["method_config"] in NORMS:
        raise Uncovered("the group norms' statistics are gathered in another way")
    yield DistriFusion(_warmup(row), GATHER_LAYERS.get(scenario.model.name, 1))


def _displaced(_row: SamplingRow, _scenario: SamplingScenario) -> Iterator[Sampler]:
    """Yield what takes as long as patch parallelism whose communication is left out, on free links."""
    yield DistriFusion(0)


def _pipefusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """Yield the numbers of patches of which the best was printed; xDiT's default is the pipeline degree."""
    warmup = _warmup(row)
    if not row["source"].startswith(FIRST_RELEASE):
        yield PipeFusion(None, None, warmup, "after")
        return
    for patches in BEST_PATCHES:
        if patches <= scenario.rows:
            yield PipeFusion(None, patches, warmup, "before")


def _usp(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """Yield the degrees that the row gives, or all."""
    if _read(_clause(row)):
        yield _of_degrees(_degrees(row), _warmup(row))
    else:
        yield from USP.candidates(scenario)


def _best(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """Yield xDiT's pure methods and their products on all GPUs."""
    warmup = _warmup(row)
    yield from (Ulysses(), Ring(), TensorParallel())
    for single in PipeFusion.candidates(scenario):
        yield replace(single, warmup_steps=warmup, receive="after")
    if scenario.workload.predictions == scenario.workload.num_gpus:
        yield Hybrid(guidance_degree=2)
    for product in Hybrid.candidates(scenario):
        yield replace(product, warmup_steps=warmup, receive="after")


def _paradigms(_row: SamplingRow, _scenario: SamplingScenario) -> Iterator[Sampler]:
    """Yield parallel sampling with its defaults, where there is such a strategy; it takes iterations as published."""
    if "paradigms" not in all_samplers():
        raise Uncovered("parallel sampling of several steps is no strategy here")
    yield make_sampler("paradigms", {})


Reader = Callable[[SamplingRow, SamplingScenario], Iterator[Sampler]]
READERS: Final[Mapping[str, Reader]] = {
    "distrifusion": _distrifusion,
    "distrifusion+cfg split": _distrifusion,
    "hybrid(best)": _best,
    "paradigms": _paradigms,
    "patch_parallel_no_comm": _displaced,
    "pipefusion": _pipefusion,
    "usp": _usp,
}


def _degrees(row: SamplingRow) -> Degrees:
    """Return the degrees that a row gives: in its method, or for its number of GPUs in its note.

    Raises:
        Uncovered: it gives none, or they are of another number of GPUs.
    """
    found = _read(row.method) or _read(_clause(row))
    if not found:
        raise Uncovered(f"method '{row.method}' is no strategy here, or its degrees are not said")
    if prod(found.values()) != row.num_gpus:
        words = " * ".join(f"{name}({degree})" for name, degree in found.items())
        raise Uncovered(f"{words} = {prod(found.values())} are not {row.num_gpus} GPUs")
    return found


def _read(text: str) -> dict[str, int]:
    return {WORDS[word]: int(degree) for word, degree in DEGREE.findall(text.lower())}


def _clause(row: SamplingRow) -> str:
    """Return what the note says of this number of GPUs: after it and a colon, or of any up to a larger number."""
    note = row["note"].lower()
    if of := re.search(rf"(?<!\d){row.num_gpus}: ([^;:]*)", note):
        return of[1]
    curve = re.search(r"up to (\d+) gpus hybrid=(\w+) curve", note)
    if curve and row.num_gpus and row.num_gpus <= int(curve[1]):
        return f"{curve[2]}={row.num_gpus}"
    return ""


def _of_degrees(degrees: Degrees, warmup: int) -> Sampler:
    """Return the strategy of some degrees, those of 1 left out.

    Raises:
        Uncovered: it is none of xDiT's.
    """
    above = {name: degree for name, degree in degrees.items() if degree > 1}
    if "data" in above:
        raise Uncovered("data parallelism draws several images; the latency is one image's")
    if not above:
        return Single()
    if set(above) == {"ulysses", "ring"}:
        return USP(above["ulysses"], above["ring"])
    if set(above) == {"pipeline"}:
        return PipeFusion(None, None, warmup, "after")
    pure: Sequence[tuple[str, Callable[[], Sampler]]] = (
        ("ulysses", Ulysses),
        ("ring", Ring),
        ("tensor", TensorParallel),
    )
    for name, sampler in pure:
        if set(above) == {name}:
            return sampler()
    return Hybrid(
        guidance_degree=above.get("guidance", 1),
        ulysses_degree=above.get("ulysses", 1),
        ring_degree=above.get("ring", 1),
        pipeline_degree=above.get("pipeline", 1),
        tensor_degree=above.get("tensor", 1),
        warmup_steps=warmup,
        receive="after",
    )
