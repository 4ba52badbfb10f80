"""Simulate parallel diffusion models, and explore the ways to parallelise them.

>>> import sim
>>> result = sim.run("sd21", "gpipe", gpus=8, pipeline_degree=4, micro_batches=8, batch_size=256)
>>> result.iteration_s, result.bubble_ratio
>>> sim.sweep("sd21", gpus=64).frame()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim import plots as plots
    from sim.face import *  # noqa: F403


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Return a name of ``sim.face``, imported late: it takes 0.5 s, and ``sim --help`` 0.1 s."""
    if name in ("__path__", "face"):  # asked by the import itself
        raise AttributeError(name)
    import sim.face

    if name == "__all__":
        return __dir__()
    if name == "plots":  # brings matplotlib
        import sim.plots
    elif name not in sim.face.__all__:
        from profiles.errors import near

        there = f"{near(name, __dir__())}it has {', '.join(__dir__())}"
        raise AttributeError(f"module 'sim' has no attribute {name!r}; {there}")
    else:
        globals()[name] = getattr(sim.face, name)
    return globals()[name]


def __dir__() -> list[str]:
    from sim.face import __all__ as names

    return sorted([*names, "plots"])
