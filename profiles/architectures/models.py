"""Models: their components, read from a model folder."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Final

from profiles.architectures.component_files import (
    DTYPES,
    read_anchors,
    read_component,
    read_entries,
    read_of,
    read_tables,
)
from profiles.architectures.components import TASKS, Anchor, Component, Skip
from profiles.checks import Count, check_choice, check_distinct, check_fields, check_name
from profiles.errors import InputError, counted
from profiles.files import Table, path_kind
from profiles.names import known_name, unknown_name

MODELS: Final = Path(__file__).parents[1] / "models"
GUIDANCES: Final = ("batch", "none", "embedded")


MAX_SIDE: Final = 65536
"""Pixels of the longest side of an image."""
MAX_FRAMES: Final = 65536


@dataclass(frozen=True)
class Model:
    """A diffusion model: frozen components and one or several backbones, in the order of its file.

    Attributes:
        name: by which a shipped model is asked for.
        dtype: precision in which its layers were counted.
        height: pixels of the images that its tables count.
        width: likewise.
        components: frozen ones and backbones.
        guidance: ``batch``, classifier-free; ``embedded``, its scale is an input of the backbone; or ``none``.
        anchors: published latencies of sampling on one GPU.
        anchor_backbones: the backbones that anchors time, where the model is a part of the one that was timed.
        multiple: pixels of which both sides of an image are multiples.
        largest: pixels of the longest side that it draws; None where that is not known.
        frames: of a video, one more than a multiple of ``frame_step``, or as many more than one of ``frame_chunk`` as
            its files have; 1 of an image.
        frame_step: frames for which there is one latent frame, beside that of the first.
        frame_chunk: frames after which a video begins anew; None where it never does.
        resized_from: height and width of its files, where it is at another resolution.
        frames_from: frames of its files, where it has others.
        predictions: noise predictions of a step, where there is guidance.
        steps: denoising steps of its card, or to which it was distilled; None where its file names none.
        samples_per_gpu: what a GPU trains on by default in an iteration.
        samples_source: who trains it so; empty where its file does not say.
        sizes: those of videos by name, such as ``("720p", "1280x720")``, where its card says for which it was trained.
    """

    name: str
    title: str
    source: str
    dtype: Annotated[str, DTYPES]
    height: Count
    width: Count
    components: tuple[Component, ...]
    guidance: Annotated[str, GUIDANCES] = "batch"
    anchors: tuple[Anchor, ...] = ()
    anchor_backbones: tuple[Component, ...] = ()
    multiple: Count = 1
    largest: Count | None = None
    frames: Count = 1
    frame_step: Count = 1
    frame_chunk: Count | None = None
    resized_from: tuple[int, int] | None = None
    predictions: Count = 2
    steps: Count | None = None
    frames_from: int | None = None
    samples_per_gpu: Count = 32
    samples_source: str = ""
    sizes: tuple[tuple[str, str], ...] = ()

    @property
    def draws_videos(self) -> bool:
        """Whether its files are of a video; it may be asked for one frame."""
        return (self.frames_from or self.frames) > 1

    @property
    def frame_rule(self) -> str:
        """The numbers of frames that a video can have, in words."""
        step, first = (chunk, self.frames % chunk) if (chunk := self.frame_chunk) else (self.frame_step, 1)
        return f"{first} more than a multiple of {step}, such as {step + first} or {4 * step + first}"

    @property
    def anchored(self) -> tuple[Component, ...]:
        """The backbones whose passes together the anchors time."""
        return self.anchor_backbones or tuple(self.components[i] for i in self.backbones)

    def __post_init__(self) -> None:
        owner = f"model {self.name}"
        check_fields(owner, self)
        names = [component.name for component in self.components]
        check_distinct(owner, "components", names)
        for component in self.components:
            check_distinct(owner, f"inputs of {component.name}", component.inputs)
            for name in component.inputs:
                check_choice(owner, f"inputs of {component.name}", name, names)
            frozen = [
                each.name for each in self.components if each.name in component.inputs and not each.trainable
            ]
            for read in component.reads:
                if not component.trainable or read.source not in frozen:
                    rule = "must be of a trainable component, and of its frozen inputs"
                    raise InputError(f"{owner}: reads of {component.name} is {read.source!r}, {rule}")
        try:
            _ = self.order
        except CycleError as error:
            cycle = " -> ".join(names[i] for i in error.args[1])
            raise InputError(f"{owner}: inputs of its components form the cycle {cycle}") from None

    def __repr__(self) -> str:
        names = ", ".join(component.name for component in self.components)
        layers = sum(len(component.layers) for component in self.components)
        parameters = sum(component.held_parameters for component in self.components)
        return f"<Model {self.name}: {names}; {counted(layers, 'layer')}, {parameters:,} parameters>"

    @cached_property
    def backbones(self) -> tuple[int, ...]:
        """Indices of the trainable components."""
        return tuple(i for i, component in enumerate(self.components) if component.trainable)

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """Indices of the frozen components, inputs before the components that need them."""
        return tuple(i for i in self.order if not self.components[i].trainable)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indices of all components in topological order."""
        return _order(self.components)

    def inputs_of(self, component: int) -> tuple[int, ...]:
        """The indices of the components whose output a component needs."""
        names = self.components[component].inputs
        return tuple(i for i, other in enumerate(self.components) if other.name in names)

    def reads_of(self, component: int, source: int) -> tuple[tuple[int, float], ...]:
        """Layers of a component that read the output of another, as (layer, bytes per sample).

        Where the model file names none, the first layer reads the whole output.
        """
        input_ = self.components[source]
        reads = self.components[component].reads
        named = tuple((read.layer, read.size_bytes) for read in reads if read.source == input_.name)
        return named or ((0, input_.layers[-1].output_bytes),)

    def only(self, backbone: int) -> "Model":
        """The model of one backbone: with the frozen components it needs, without the other backbones."""
        needed = {backbone}
        for index in reversed(self.order):
            if index in needed:
                needed |= set(self.inputs_of(index)).intersection(self.frozen)
        components = _closed([self.components[index] for index in sorted(needed)])
        return replace(self, components=components, anchor_backbones=self.anchored)

    def for_task(self, task: str, also: Collection[str] = ()) -> "Model":
        """The model with only the components that a task needs, and those named; itself where that is all of them."""
        assert task in TASKS, task
        kept = [
            component for component in self.components if task in component.tasks or component.name in also
        ]
        return self if len(kept) == len(self.components) else replace(self, components=_closed(kept))


def _order(components: Sequence[Component]) -> tuple[int, ...]:
    """Indices of components, inputs before those that need them."""
    numbers = {component.name: i for i, component in enumerate(components)}
    graph = {i: sorted(numbers[n] for n in c.inputs) for i, c in enumerate(components)}
    return tuple(TopologicalSorter(graph).static_order())


def _closed(kept: Iterable[Component]) -> tuple[Component, ...]:
    """Some components of a model, which forget their inputs among the others."""
    names = {component.name for component in kept}
    return tuple(
        replace(
            component,
            inputs=tuple(name for name in component.inputs if name in names),
            reads=tuple(read for read in component.reads if read.source in names),
        )
        for component in kept
    )


def model_names() -> list[str]:
    """The names of the shipped models."""
    return sorted(path.parent.name for path in MODELS.glob("*/model.toml"))


def load_model(name: str) -> Model:
    """A shipped model by name, or any by the path of its folder."""
    check_name("model", name)
    if (known := known_name("model", name, model_names())) is not None:
        return _shipped(known)
    folder = Path(name)
    kind = path_kind(folder)
    if kind == "folder":
        return read_model(folder)
    if kind == "file":
        raise InputError(f"{folder}: is not a folder; a model is a folder with model.toml and layers.csv")
    raise unknown_name("model", name, model_names(), ", or pass a model folder or a config.json")


@cache
def _shipped(name: str) -> Model:
    """A shipped model, read once: its files take as long as a run of it."""
    return read_model(MODELS / name)


def read_model(folder: Path) -> Model:
    """Read a model folder."""
    table = Table.read(folder / "model.toml")
    reference = table.table("reference")
    of_reference, sizes = reference.fields_of(Model), reference.table("sizes", {})
    training = table.table("training", {})
    usual = 1 if of_reference.get("frames", 1) > 1 else 32
    model = table.made(
        Model,
        **of_reference,
        components=_read_components(table),
        anchors=read_anchors(folder / "anchors.csv"),
        samples_per_gpu=training.integer("samples_per_gpu", usual),
        samples_source=training.text("source") if "training" in table else "",
        sizes=tuple((name, sizes.text(name)) for name in sizes.values()),
    )
    training.finish()
    _check_reference(reference, model)
    reference.finish()
    table.finish()
    return model


def _read_components(table: Table) -> tuple[Component, ...]:
    """The components that a model file names, with their rows of the files beside it."""
    listed = list(table.tables("components"))
    if not listed:
        raise InputError(f"{table.path}: components is empty, must name at least one")
    names = [head.text("name") for head in listed]
    check_distinct(str(table.path), "components", names)
    skips = read_entries(table, "skips", names, lambda entry: entry.made(Skip))
    reads, tables = read_entries(table, "reads", names, read_of), read_tables(table, names)
    return tuple(
        read_component(head, tables, skips[name], reads[name])
        for name, head in zip(names, listed, strict=True)
    )


def _check_reference(reference: Table, model: Model) -> None:
    """Refuse a reference resolution that breaks the model's own rules."""
    for key, pixels in (("height", model.height), ("width", model.width)):
        if pixels % model.multiple:
            raise reference.fail(key, f"must be a multiple of {model.multiple}")
        if pixels > (most := model.largest or MAX_SIDE):
            raise reference.fail(key, f"must be at most {most}")
    if model.frames > MAX_FRAMES:
        raise reference.fail("frames", f"must be at most {MAX_FRAMES}")
    if model.frame_chunk is None and (model.frames - 1) % model.frame_step:
        raise reference.fail("frames", f"must be {model.frame_rule}")


def latent_frames(frames: int, step: int, chunk: int | None) -> int:
    """Return the latent frames of a video: one of its first frame, and of each ``step`` more, in each chunk anew."""
    chunk = chunk or frames + 1
    return sum((part - 1) // step + 1 for part in [*[chunk] * (frames // chunk), frames % chunk])
