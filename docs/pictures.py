"""Draw the pictures of README and docs: ``python docs/pictures.py [NAME ...]``, into docs/pages/pictures."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure

import sim
from validate.published.figure import plot_published
from validate.published.report import report

PICTURES = Path(__file__).parent / "pages" / "pictures"
SD21 = {"model": "sd21", "gpus": 8, "batch_size": 256}
FOUR_STAGES = {"pipeline_degree": 4, "micro_batches": 8, "group_size": 8}


def timeline() -> Figure:
    """One iteration of DiffusionPipe on eight A100s, frozen encoders in its bubbles."""
    return sim.run(strategy="diffusionpipe", **SD21, **FOUR_STAGES).plot_timeline()


def winners() -> Figure:
    """The fastest strategy of Stable Diffusion 2.1 by GPUs and samples per GPU."""
    rows = [
        row | {"samples per GPU": each}
        for each in (4, 8, 16, 32)
        for gpus in (8, 16, 32, 64, 128)
        for row in sim.sweep("sd21", gpus=gpus, batch_size=each * gpus, top=1).rows(best_of_each=True)
    ]
    return sim.plots.plot_winners(
        rows, across="num_gpus", down="samples per GPU", title="Stable Diffusion 2.1 on p4de"
    )


def front() -> Figure:
    """Latency against peak memory of every sampler of PixArt on up to eight L20, and their front."""
    asked = {"resolution": 2048, "steps": 20, "objective": "pareto"}
    return sim.sweep("pixart", "l20-pcie-8", 8, **asked).plot()


def parity() -> Figure:
    """Published numbers against predicted ones."""
    return plot_published(report(None, lambda *_: None))


def schedules() -> Figure:
    """Four schedules of the same stages: GPipe, 1F1B, interleaved 1F1B and ZB-H1."""
    model = sim.equal_layers_model(16)
    asked = {"gpus": 4, "batch_size": 32, "pipeline_degree": 4, "micro_batches": 8}
    orders = ("gpipe", "1f1b", "interleaved", "zero-bubble")
    return stacked({strategy: sim.run(model, strategy, "ideal", **asked) for strategy in orders})


def filling() -> Figure:
    """The same pipeline with its bubbles empty, and with frozen layers in them."""
    fills = {"bubbles empty": "none", "bubbles filled": "partial"}
    return stacked(
        {
            name: sim.run(strategy="diffusionpipe", fill=fill, **SD21, **FOUR_STAGES)
            for name, fill in fills.items()
        }
    )


def patches() -> Figure:
    """PipeFusion and DistriFusion, three steps on four A100s over PCIe."""
    asked = {"cluster": "a100-pcie-4", "gpus": 4, "resolution": 2048, "steps": 3, "warmup_steps": 1}
    return stacked(
        {
            "PipeFusion, a synchronous step and two displaced ones": sim.run(
                "pixart", "pipefusion", patches=8, **asked
            ),
            "DistriFusion, one displaced step": sim.run("pixart", "distrifusion", gather_layers=1, **asked),
        },
        alike=False,
    )


def settled() -> Figure:
    """The points of a sweep in the order of their bounds: which were simulated, and which a bound settled."""
    points = [point for point in sim.sweep("sd21", gpus=64) if point.reason is None]
    points.sort(key=lambda point: point.bound_s)
    simulated = [
        (place, one.result.iteration_s) for place, one in enumerate(points) if one.result is not None
    ]
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.subplots()
    bounds_s = [point.bound_s for point in points]
    axes.plot(bounds_s, color="#9A9A9A", label=f"bounds of {len(points):,} points")
    axes.plot(*zip(*simulated, strict=True), ".", color="#0072B2", label=f"{len(simulated)} simulated")
    axes.set(xlabel="points, by their bounds", ylabel="seconds of an iteration", yscale="log")
    axes.minorticks_off()
    axes.set_yticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.legend(frameon=False)
    return figure


def stacks() -> Figure:
    """The same training on three stacks, with the encoders in every iteration and with their outputs cached."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.subplots()
    asked = {"model": "sd21", "strategy": "zero2", "gpus": 64}
    cases = [
        (frozen, stack) for frozen in ("online", "cached") for stack in ("eager-2023", "eager", "compiled")
    ]
    results = [sim.run(**asked, frozen=frozen, stack=stack) for frozen, stack in cases]
    seconds = [result.iteration_s for result in results]
    band = [[r.iteration_s - r.low_s for r in results], [r.high_s - r.iteration_s for r in results]]
    axes.barh(range(len(cases)), seconds, xerr=band, color=["#0072B2"] * 3 + ["#56B4E9"] * 3, capsize=3)
    axes.set_yticks(range(len(cases)), [f"encoders {frozen}, {stack}" for frozen, stack in cases])
    axes.set(xlabel="seconds of an iteration, and its band")
    axes.invert_yaxis()
    return figure


def stacked(results: Mapping[str, sim.Result], *, alike: bool = True) -> Figure:
    """Timelines one above the other, with one legend under them; on one axis of time if they are alike."""
    longest_s = max(result.trace.end_s for result in results.values())
    figure = Figure(figsize=(9.0, 2.3 * len(results) + 0.6), layout="constrained")
    legend: dict[str, Artist] = {}
    for axes, (name, result) in zip(figure.subplots(len(results)), results.items(), strict=True):
        sim.plots.plot_timeline(result.trace, name, ax=axes)
        if alike:
            axes.set_xlim(0.0, 1e3 * longest_s)
        own = axes.get_legend()
        legend |= {
            text.get_text(): handle for text, handle in zip(own.get_texts(), own.legend_handles, strict=True)
        }
        own.remove()
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return figure


DRAWN: dict[str, Callable[[], Figure]] = {
    drawn.__name__: drawn
    for drawn in (timeline, winners, front, parity, schedules, filling, patches, settled, stacks)
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    mpl.rcParams["svg.hashsalt"] = "diffusim"  # the same picture is the same file
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or DRAWN:
        DRAWN[name]().savefig(PICTURES / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])
