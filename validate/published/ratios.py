"""Ratios of times that papers print: frozen over trained, gradient reduction, unfilled bubbles, useful shares.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), Tables 1 and 2, Fig. 4; PipeFusion (arXiv 2405.14430v1), section
3.3.
"""

from collections.abc import Iterator
from typing import Final

from profiles.clusters import load_cluster
from profiles.models import Model
from profiles.synthetic import equal_blocks_transformer, equal_layers_model
from sim.replay.metrics import idle_s
from sim.runs import replay, run_point
from strategies.registry import make_sampler, make_strategy
from strategies.scenario import SamplingScenario, SamplingWorkload, Scenario, TrainingWorkload
from validate.published.rows import Prediction, Published, Section, percent, published, the_published
from validate.published.scenes import scenario, with_all_gradients

CONTROLNETS: Final = ("controlnet-hint-vae", "controlnet")
"""Both readings of what ControlNet's frozen part is, see their model files; the one of Table 1 first."""
RECIPES: Final = {"fp32": "mixed", "fp16": "mixed-fp16-gradient"}
"""Memory recipes by the type of their gradients."""
EFFICIENCIES: Final = {"sd21": "sets p4de's collective efficiencies"}
"""What Table 2 was used for, by model."""
LOCAL_BATCH: Final = 8
"""Of Table 2."""
LAYERS: Final = 12
"""Of an equal-layers backbone: a multiple of 2, 3 and 4 stages."""
EQUAL: Final = "equal layers"
"""Provenance of times that are all alike by assumption."""
STEPS: Final = 50
"""Of PipeFusion's section 3.3."""


def frozen_ratio(model: str, batch: int) -> float:
    """Return forward time of the frozen part over forward and backward time of the trained part."""
    point = scenario(model, "p4de", 1, 1)
    costs = point.costs.components
    frozen_s = sum(float(costs[i].forward_s(batch).sum()) for i in point.model.frozen)
    trained = [costs[i] for i in point.model.backbones]
    trained_s = sum(float((c.forward_s(batch) + c.backward_s(batch)).sum()) for c in trained)
    return frozen_s / trained_s


def frozen_ratios() -> Section:
    """Return Table 1."""
    predictions, rows = [], []
    for row in published("Table 1", model="sd21"):
        assert row.batch_size is not None
        also = the_published("Table 1", model="controlnet", batch_size=row.batch_size)
        own = frozen_ratio("sd21", row.batch_size)
        others = [frozen_ratio(model, row.batch_size) for model in CONTROLNETS]
        predictions.append(Prediction(row, own, "sd21", "sets the A100's rates"))
        predictions += [Prediction(also, *of) for of in zip(others, CONTROLNETS, strict=True)]
        cells = (row.value, own, also.value, *others)
        rows.append([f"local batch {row.batch_size}", *map(percent, cells)])
    return Section(
        "DiffusionPipe, Table 1: frozen over trained time",
        ["", "sd21, published", "simulated (used in the fit)", "ControlNet, published", *CONTROLNETS],
        rows,
        "ControlNet's ratios are predictions. Its frozen part is what the first folder says: two VAE encodes, of the"
        " image and of the hint, with the locked U-Net in the backbone; one encode and a frozen locked encoder give"
        " a fifth to a quarter less.",
        predictions,
    )


def synchronisation_share(model: str | Model, num_gpus: int, recipe: str) -> float:
    """Return the share of an iteration of data parallelism in which gradients are reduced, after the backward."""
    point = scenario(
        model, "p4de", num_gpus, LOCAL_BATCH * num_gpus, self_conditioning=0.0, memory_recipe=recipe
    )
    expected = run_point(make_strategy("ddp", {"overlap": "none"}), point).expected
    return expected.collective_s / expected.duration_s


def slowness(published_share: float, simulated_share: float) -> float:
    """Return by which factor all but the reduction must take longer for the published share to come out."""
    return (1 / published_share - 1) / (1 / simulated_share - 1)


def synchronisation_shares() -> Section:
    """Return Table 2, with what it implies for the pace of everything else."""
    every = with_all_gradients("controlnet-hint-vae", "p4de")
    cases: dict[str, tuple[str, str | Model]] = {
        "sd21": ("sd21", "sd21"),
        **{f"{name}, copy alone": ("controlnet", name) for name in CONTROLNETS},
        "controlnet-hint-vae, locked U-Net too": ("controlnet", every),
    }
    rows, predictions = [], []
    for name, (asked, model) in cases.items():
        for gradients, recipe in RECIPES.items():
            of = published("Table 2", model=asked)
            shares = [synchronisation_share(model, row.num_gpus or 1, recipe) for row in of]
            predictions += [
                Prediction(row, share, f"{name}; {gradients} gradients", EFFICIENCIES.get(asked, ""))
                for row, share in zip(of, shares, strict=True)
            ]
            factors = [slowness(row.value, share) for row, share in zip(of, shares, strict=True)]
            rows.append(
                [f"{name}; {gradients}", *_both(of, shares), f"{min(factors):.2f} to {max(factors):.2f}"]
            )
    return Section(
        "DiffusionPipe, Table 2: share of the gradient reduction in an iteration of DDP, local batch 8",
        ["gradients reduced", "8 GPUs", "16", "32", "64", "all else must be slower by"],
        rows,
        "Published, then simulated. sd21's ratios to one another set p4de's efficiencies, so its last column is one"
        " number by construction; for ControlNet it is a check, and holds: the efficiencies fit its four shares too."
        " One pace of their stack explains both models only if the locked U-Net's gradients are reduced as well: the"
        " last column is then sd21's, with either type of gradients.",
        predictions,
    )


def _both(rows: tuple[Published, ...], simulated: list[float]) -> Iterator[str]:
    return (f"{percent(row.value)}, {percent(value)}" for row, value in zip(rows, simulated, strict=True))


def unfilled_bubbles() -> Section:
    """Return Fig. 4: 1F1B on equal layers, the frozen part run data-parallel before it."""
    predictions = [
        prediction
        for model in ("sd21", "controlnet")
        for row in published("Fig. 4", model=model, metric="bubble_ratio")
        for prediction in _bubbles(row)
    ]
    rows = []
    for metric in ("bubble_ratio", "bubble_over_frozen_time"):
        errors = [abs(p.simulated - p.row.value) for p in predictions if p.row.metric == metric]
        rows.append([metric.replace("_", " "), str(len(errors)), f"{max(errors):.4f}"])
    return Section(
        "DiffusionPipe, Fig. 4: bubbles of 1F1B before they are filled",
        ["", "numbers", "largest difference"],
        rows,
        "Replayed on a backbone of equal layers and free links, which is what the figure shows; the frozen share of"
        " each model is the inverse of one of its 24 numbers (2 stages, 1 micro-batch).",
        predictions,
    )


def _bubbles(row: Published) -> Iterator[Prediction]:
    stages, micro_batches = row.num_gpus or 1, int(row.note.split()[2])
    over = published("Fig. 4", model=row.model, metric="bubble_over_frozen_time")
    first = next(r for r in over if r.num_gpus == 2 and r.note.startswith("2 stages, 1 "))
    other = next(r for r in over if r.note == f"{stages} stages, {micro_batches} micro-batches")
    share = 1 / first.value
    model = equal_layers_model(LAYERS, frozen_share=share)
    workload = TrainingWorkload(stages, stages * micro_batches * LAYERS)
    point = Scenario(model, load_cluster("ideal"), workload)
    asked = {"pipeline_degree": stages, "micro_batches": micro_batches}
    trace = replay(make_strategy("1f1b", asked), point)
    bubble_s = idle_s(trace)
    frozen_s = float(point.costs.components[0].forward_s(workload.batch_size).sum()) / stages
    setting = f"equal layers, frozen over trained {share:.4f}"
    sets = "sets the frozen share" if other == first else ""
    yield Prediction(row, bubble_s / trace.end_s, setting, provenance=EQUAL)
    yield Prediction(other, bubble_s / frozen_s, setting, sets, EQUAL)


def useful_share() -> Section:
    """Return PipeFusion's section 3.3: the share of its devices' time that is compute."""
    row = the_published("3.3")
    stages = row.num_gpus or 1
    model = equal_blocks_transformer(LAYERS)
    workload = SamplingWorkload(stages, model.height, model.width, STEPS, "none")
    point = SamplingScenario(model, load_cluster("ideal"), workload)
    sampler = make_sampler("pipefusion", {"patches": stages, "warmup_steps": 0})
    share = 1 - run_point(sampler, point).bubble_ratio
    found = Prediction(row, share, "equal layers, no synchronous step", provenance=EQUAL)
    return Section(
        "PipeFusion, section 3.3: share of compute in the time of its devices",
        ["", "published", "simulated"],
        [[row.note, f"{row.value:.3f}", f"{share:.3f}"]],
        predictions=[found],
    )
