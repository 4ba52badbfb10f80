"""Work out who wins where: ``python docs/winners.py`` sweeps all models on all clusters of the page in an hour.

What is done stays in ``build/winners.jsonl``; a run that was interrupted goes on there.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import sim
from profiles.errors import DiffusimError
from profiles.machines.clusters import load_cluster
from sim.explore.legality import starters

ROOT = Path(__file__).parents[1]
DONE = ROOT / "build/winners.jsonl"
PAGE = ROOT / "docs/pages/winners.json"
MODELS = [
    "sd21",
    "sdxl",
    "sd3-medium",
    "sd3.5-large",
    "pixart",
    "hunyuan-1.5b",
    "flux-dev",
    "flux-schnell",
    "flux2-dev",
    "z-image-turbo",
    "qwen-image",
    "uvit-h",
    "uvit-2.7b",
    "cogvideox-2b",
    "cogvideox-5b",
    "ltx-video",
    "mochi",
    "hunyuanvideo",
    "wan2.1-1.3b",
    "wan2.1-14b",
]
CLUSTERS = [
    "p4d",
    "p4de",
    "a100-ib",
    "p5",
    "h100-ib",
    "h200-ib",
    "b200-ib",
    "gb200-nvl72",
    "l40s-ib",
    "h20-nvlink-8",
    "l20-pcie-8",
    "rtx4090-pcie-8",
]
PLAIN = {"train": ("ddp", "fsdp"), "sample": ("ulysses",)}
"""What one starts with where nobody searched."""
COUNTS = (1, 8, 64)
Question = tuple[str, str, str, int]


def winner(question: Question) -> tuple[Question, dict[str, Any]]:
    """Return the recommended point of a sweep, and the per cent that the plain choice loses; or why there is none."""
    task, model, cluster, gpus = question
    try:
        sweep = sim.sweep(model, cluster, gpus, task=task, top=1, workers=1)
        point, best = sweep.best_point(), sweep.best
    except DiffusimError as error:
        return question, {"none": str(error).split(": ")[-1] if "feasible" in str(error) else str(error)}
    assert point is not None
    seconds = next(iter(best.times.values()))
    found = {
        "strategy": best.strategy,
        "on": best.num_gpus,
        "s": float(f"{seconds:.4g}"),
        "band": [float(f"{end:.3g}") for end in best.bands.values()],
        "batch": best.batch_size,
        "GiB": round(best.expected.peak_memory_bytes / 2**30, 1),
        "runs": ", ".join(starters(point, sweep.scenario)),
    }
    plain = [
        point.score(sweep.objective)
        for point in sweep.points
        if point.name in PLAIN[task] and point.result is not None
    ]
    if plain:
        found["plain"] = round(100 * (min(plain) / point.score(sweep.objective) - 1), 1)
    return question, found


def main() -> None:
    """Answer what is not answered yet, and write all answers where the page reads them."""
    DONE.parent.mkdir(exist_ok=True)
    lines = DONE.read_text(encoding="utf-8").splitlines() if DONE.exists() else []
    known = {tuple(question): found for question, found in map(json.loads, lines)}
    nodes = {name: load_cluster(name) for name in CLUSTERS}
    asked = [
        (task, model, cluster, gpus)
        for task, gpus, model, cluster in product(PLAIN, COUNTS, MODELS, CLUSTERS)
        if gpus <= nodes[cluster].devices_per_node * nodes[cluster].max_nodes
    ]
    open_questions = [question for question in asked if question not in known]
    with ProcessPoolExecutor(2) as pool, DONE.open("a", encoding="utf-8") as file:
        for number, (question, found) in enumerate(pool.map(winner, open_questions), 1):
            known[question] = found
            print(json.dumps([question, found]), file=file, flush=True)
            print(f"\r{number} of {len(open_questions)}", end="", file=sys.stderr)
    text = ",\n".join(json.dumps([question, known[question]], separators=(",", ":")) for question in asked)
    PAGE.write_text(f"[{text}]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
