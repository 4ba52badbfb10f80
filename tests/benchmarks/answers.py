"""Answers of two versions, compared: ``answers.py write FILE`` in each, then ``answers.py compare OLD NEW``.

Runs: every model by every strategy on 8 and 64 GPUs. Sweeps: both tasks of every model on 8 and 64 GPUs, top 20.
Times and bytes must agree to 1e-9, all else exactly.
"""

import json
import sys
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

import sim

PIPELINES = {"pipeline_degree": 4, "micro_batches": 8}
LONG = {"pipeline_degree": 2, "micro_batches": 32}
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    **{
        name: [PIPELINES, LONG]
        for name in ("gpipe", "1f1b", "spp", "zero-bubble", "bidirectional", "diffusionpipe")
    },
    **{name: [PIPELINES] for name in ("interleaved", "wave", "pulse")},
    **{name: [{}, {"micro_batches": 16}] for name in ("ddp", "zero2", "zero3", "fsdp")},
    "pipefusion": [{"patches": 8}, {"patches": 16, "receive": "after", "warmup_steps": 0}],
    "hybrid": [
        {"ulysses_degree": 2, "pipeline_degree": 4, "patches": 4},
        {"ring_degree": 2, "tensor_degree": 2, "ulysses_degree": 2},
        {"guidance_degree": 2, "pipeline_degree": 4, "patches": 4},
    ],
    "usp": [{"ulysses_degree": 4, "ring_degree": 2}, {"ulysses_degree": 8, "ring_degree": 8}],
    "attention2d": [{"rows": 2, "columns": 4}, {"rows": 2, "columns": 4, "ulysses_degree": 8}],
}
TRAINING: list[dict[str, Any]] = [
    {"checkpointing": "full", "self_conditioning": 0.5},
    {"checkpointing": "block", "frozen": "cached", "ema": "device"},
    {"trainable": "lora:16", "stack": "compiled"},
    {"offload": "optimizer", "memory_recipe": "fp32", "placement": "data-inner"},
]
SAMPLING: list[dict[str, Any]] = [
    {"steps": 50, "resolution": "2048"},
    {"cluster": "l20-pcie-8", "steps": 8, "frozen": "resident"},
    {"guidance": "parallel", "steps": 50},
    {"stack": "compiled", "batch_size": 8, "cluster": "h100-nvlink-8"},
]
SEVERAL = ("sd21", "flux-dev", "pixart", "hunyuan-1.5b", "cdm-lsun", "controlnet")
COUNTS = (8, 64)


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every question with its name."""
    tasks = {str(row.name): str(row.task) for row in sim.strategies().itertuples()}
    models = sorted(set(sim.models()["name"]))
    for model in models:
        for count in COUNTS:
            for strategy, task in sorted(tasks.items()):
                for number, parameters in enumerate(PARAMETERS.get(strategy, [{}])):
                    name = f"run {model} {strategy} {count} {number}"
                    asked = {
                        "model": model,
                        "strategy": strategy,
                        "gpus": 1 if strategy == "single" else count,
                        **parameters,
                    }
                    asked["batch_size"] = 32 * count if task == "train" else count // 8
                    yield name, asked
                    options = (TRAINING if task == "train" else SAMPLING) if model in SEVERAL else ()
                    for kind, changed in enumerate(options):
                        yield f"{name} {kind}", asked | changed
            for task in ("train", "sample"):
                yield f"sweep {model} {task} {count}", {"model": model, "task": task, "gpus": count}


def answer(name: str, question: dict[str, Any]) -> Any:
    """The JSON of a question, or what it is refused with."""
    try:
        if name.startswith("run"):
            return sim.run(**question).to_json()
        return [row for row in sim.sweep(**question, workers=1).rows()[:20] if row["status"] == "simulated"]
    except sim.InputError as error:
        return {"refused": str(error)}
    except sim.InfeasibleError as error:
        return {"infeasible": str(error)}


def write(path: Path, only: str = "") -> None:
    """Write all answers, a line each; those that the file has already are not asked again."""
    done = {json.loads(line)[0] for line in path.read_text().splitlines()} if path.exists() else set()
    with path.open("a") as file:
        for name, question in questions():
            if name not in done and only in name:
                print(json.dumps([name, answer(name, question)]), file=file, flush=True)


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where two answers differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{where}[{number}]")
    elif isinstance(old, float) and isinstance(new, float | int):
        if not isclose(old, new, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{where}: {old!r} -> {new!r}"
    elif old != new:
        yield f"{where}: {old!r} -> {new!r}"


def compare(before: Path, after: Path) -> int:
    """Print where answers differ; the number of those that do."""
    old, new = (dict(map(json.loads, path.read_text().splitlines())) for path in (before, after))
    count = 0
    for name in [name for name in old if name in new]:
        if found := list(differences(old[name], new[name])):
            count += 1
            print(name, *(f"    {each[:300]}" for each in found[:5]), sep="\n")
    print(
        f"{count} of {len(old.keys() & new.keys())} answers differ; {len(old.keys() ^ new.keys())} in one alone"
    )
    return count


if __name__ == "__main__":
    task, *rest = sys.argv[1:]
    sys.exit(write(Path(rest[0]), *rest[1:]) if task == "write" else compare(Path(rest[0]), Path(rest[1])))
