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
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    **{
        name: [PIPELINES]
        for name in ("gpipe", "1f1b", "spp", "zero-bubble", "bidirectional", "diffusionpipe")
    },
    **{name: [PIPELINES] for name in ("interleaved", "wave", "pulse")},
    **{name: [{}, {"micro_batches": 16}] for name in ("ddp", "zero2", "zero3", "fsdp")},
    "pipefusion": [{"patches": 8}, {"patches": 16, "receive": "after", "warmup_steps": 0}],
    "hybrid": [
        {"ulysses_degree": 2, "pipeline_degree": 4, "patches": 4},
        {"guidance_degree": 2, "pipeline_degree": 4, "patches": 4},
    ],
    "usp": [{"ulysses_degree": 4, "ring_degree": 2}, {"ulysses_degree": 8, "ring_degree": 8}],
    "attention2d": [{"rows": 2, "columns": 4}, {"rows": 2, "columns": 4, "ulysses_degree": 8}],
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "train": [
        {"checkpointing": "full", "self_conditioning": 0.5},
        {"checkpointing": "block", "frozen": "cached", "ema": "device"},
        {"trainable": "lora:16", "stack": "compiled"},
        {"offload": "optimizer", "memory_recipe": "fp32", "placement": "data-inner"},
    ],
    "sample": [
        {"steps": 50, "resolution": "2048"},
        {"guidance": "parallel", "steps": 50},
        {"stack": "compiled", "batch_size": 8, "cluster": "h100-nvlink-8"},
    ],
}
"""What is asked of several models besides."""
SEVERAL = ("sd21", "flux-dev", "pixart", "hunyuan-1.5b", "cdm-lsun", "controlnet")


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every question with its name."""
    tasks = {str(row.name): str(row.task) for row in sim.strategies().itertuples()}
    for model in sorted(set(sim.models()["name"])):
        for count in (8, 64):
            for strategy, task in sorted(tasks.items()):
                gpus = 1 if strategy == "single" else count
                asked = {"model": model, "strategy": strategy, "gpus": gpus}
                asked["batch_size"] = 32 * count if task == "train" else count // 8
                for number, parameters in enumerate(PARAMETERS.get(strategy, [{}])):
                    for kind, options in enumerate([{}, *(OPTIONS[task] if model in SEVERAL else ())]):
                        yield f"run {model} {strategy} {count} {number} {kind}", asked | parameters | options
            for task in OPTIONS:
                yield f"sweep {model} {task} {count}", {"model": model, "task": task, "gpus": count}


def answer(name: str, question: dict[str, Any]) -> Any:
    """The JSON of a question, or what it is refused with."""
    try:
        if name.startswith("run"):
            return sim.run(**question).to_json()
        return [row for row in sim.sweep(**question, workers=1).rows()[:20] if row["status"] == "simulated"]
    except (sim.InputError, sim.InfeasibleError) as error:
        return str(error)


def leaves(value: Any, where: str = "") -> dict[str, Any]:
    """The numbers and words of an answer by where they stand."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, item in items for key, leaf in leaves(item, f"{where}.{name}").items()}
    return {where: value}


def alike(one: Any, other: Any) -> bool:
    """Whether two leaves agree."""
    numbers = isinstance(one, float) and isinstance(other, float | int)
    return isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) if numbers else bool(one == other)


def compare(before: Path, after: Path) -> int:
    """Print where answers differ; the number of those that do."""
    old, new = (dict(map(json.loads, path.read_text().splitlines())) for path in (before, after))
    count = 0
    for name in old.keys() & new.keys():
        one, other = leaves(old[name]), leaves(new[name])
        places = [key for key in one | other if not alike(one.get(key), other.get(key))]
        count += bool(places)
        for key in places[:5]:
            print(f"{name}{key}: {one.get(key)!r} -> {other.get(key)!r}"[:300])
    print(f"{count} answers differ; {len(old.keys() ^ new.keys())} in one alone")
    return count


if __name__ == "__main__":
    task, path, *rest = sys.argv[1:]
    if task == "compare":
        sys.exit(compare(Path(path), Path(rest[0])))
    with Path(path).open("w") as file:
        for name, question in questions():
            print(json.dumps([name, answer(name, question)]), file=file, flush=True)
