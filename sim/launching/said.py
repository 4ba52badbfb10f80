"""Options of a point that what starts it does not set by itself: they stand above it as comments."""

import json
from collections.abc import Mapping
from typing import Any, Final

from profiles.software.stacks import DEFAULT_STACK
from sim.launching.starts import Start, Written
from strategies.parameters import flag_of, options_of

DRAWN: Final = frozenset({"resolution", "steps", "frames"})
PRINTED: Final[Mapping[str, frozenset[str]]] = {
    "accelerate": frozenset(),
    "deepspeed": frozenset({"batch_size"}),
    "diffusers": DRAWN | {"batch_size", "stack"},
    "diffusion-pipe": frozenset({"checkpointing"}),
    "distrifusion": DRAWN,
    "fastvideo": DRAWN | {"batch_size", "stack", "encoders"},
    "fastvideo-train": frozenset({"batch_size", "checkpointing", "frames", "resolution", "stack"}),
    "fsdp2": frozenset({"checkpointing"}),
    "sglang": DRAWN | {"batch_size", "stack"},
    "torch-pipelining": frozenset(),
    "torchtitan": frozenset({"batch_size", "checkpointing", "stack"}),
    "vllm-omni": frozenset(),
    "xdit": DRAWN | {"batch_size", "stack", "precision", "all_to_all"},
    "xdit-scripts": DRAWN | {"stack"},
    "xfuser-0.1": DRAWN,
}
"""Options that are printed whatever the strategy and the model, by runtime."""
GUIDANCE_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "diffusers": ("ltx-video", "wan2.1-1.3b", "wan2.1-14b"),
    "fastvideo": ("wan2.1-1.3b", "wan2.1-14b"),
    "sglang": ("sd3-medium", "sd3.5-large", "wan2.1-1.3b", "wan2.1-14b"),
    "xdit": ("sd3.5-large", "wan2.1-14b"),
}
"""Models that take one prediction where their guidance scale is 1, by the runtimes whose flag for it was read."""
TOLD: Final = ("distrifusion", "xfuser-0.1")
"""Runtimes whose configuration says whether there is guidance."""
TORCH_COMPILE: Final = "compiled"
"""The stack that the flags of runtimes and ``torch.compile`` stand for."""


def commented(start: Start, written: Written) -> Written:
    """What starts a point, below a comment for each option that it does not set, or with a key that holds them."""
    text, *notes = written
    if text.startswith("{"):  # JSON has no comments, and DeepSpeed looks up the keys that it knows
        own = {flag_of(name): value for name, value in unset(start).items()}
        return json.dumps(json.loads(text) | ({"not_set_here": own} if own else {}), indent=2), *notes
    lines = [f"# not set below: {flag_of(name)} {value}\n" for name, value in unset(start).items()]
    return "".join(lines) + text, *notes


def unset(start: Start) -> dict[str, Any]:
    """Options that are not as the runtime has them by itself, and are not printed for it."""
    asked = _options(start)
    usual, printed = _usual(start), _printed(start)
    return {
        name: value
        for name, value in asked.items()
        if name not in printed and value not in ("", None) and (name not in usual or value != usual[name])
    }


def one_scale(start: Start) -> bool:
    """Whether a guidance scale of 1 is to be printed, with which one prediction is drawn."""
    known = start.scenario.model.name in GUIDANCE_FLAGS.get(start.runtime.name, ())
    return known and start.scenario.workload.guidance == "none"


def _options(start: Start) -> dict[str, Any]:
    scenario = start.scenario
    given = {**scenario.asked, **scenario.options}
    own = {name: value for name, value in given.items() if name not in scenario.shared_options}
    return own | {"batch_size": start.result.batch_size, "stack": scenario.stack_name}


def _printed(start: Start) -> frozenset[str]:
    """Names of options that what is printed for this point sets."""
    own, workload = PRINTED[start.runtime.name], start.scenario.workload
    if "stack" in own and start.scenario.stack.name not in (DEFAULT_STACK, TORCH_COMPILE):
        own -= {"stack"}
    if start.scenario.task == "train":
        strategy = start.strategy.name
        own |= {"checkpointing"} if (start.runtime.name, strategy) == ("accelerate", "fsdp") else set()
        model = start.scenario.model
        own |= {"resolution"} if start.runtime.name == "torchtitan" and model.height == model.width else set()
        cached = start.runtime.name == "fastvideo-train" and workload.frozen == "cached"
        own |= {"frozen"} if cached else set()
        offloads = start.runtime.name == "deepspeed" and workload.offload == "optimizer"
        reduces = (
            start.runtime.name in ("fsdp2", "deepspeed") and workload.memory_recipe == "mixed-fp16-gradient"
        )
        return own | ({"offload"} if offloads else set()) | ({"memory_recipe"} if reduces else set())
    split = workload.guidance == "parallel"
    streams_all = start.runtime.name in ("diffusers", "fastvideo") and start.staying == 0
    if start.runtime.name == "sglang" or streams_all:
        own |= {"offload"}
    return own | ({"guidance"} if split or one_scale(start) or start.runtime.name in TOLD else set())


def _usual(start: Start) -> Mapping[str, Any]:
    """Options as a runtime has them by itself; it has no number of steps."""
    scenario = start.scenario
    plain = {item.name: item.default for item in options_of(scenario.workload)} | {"stack": DEFAULT_STACK}
    if scenario.task == "train":
        return plain | {"self_conditioning": 0.0}
    return plain | {"batch_size": 1, "guidance": scenario.model.guidance, "steps": None}
