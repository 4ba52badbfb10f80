"""The command that fits laws of kernels: coefficients of each class with their sources, and their errors."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.devices import DEVICES, load_device
from profiles.machines.laws import ELEMENT_BYTES, MEMORY_KINDS, PARTS, padded
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.writing import show, table, toml_text
from validate.fitting.kernels import laws, rows
from validate.fitting.kernels.laws import CACHE_KEYS, DIGITS, OVERLAP, Fit, Origin, Target, target, targets
from validate.tables import write_file

COMMAND: Final = "python -m validate fit-kernels --write"
"""The command that makes these tables."""
SCALED: Final = "as {like}, paces by the ratio of the peaks; not measured"
CACHED_ON: Final = "rtx4090-24gb"
"""Device whose rows show what a second-level cache does for memory-bound kernels."""
TRAFFIC: Final = ("GB_per_s", *CACHE_KEYS)
TILED: Final = ("processors", "edge", "peak_TFLOP_per_s")
WIDE_KEY: Final = "wide"
KEYS: Final = {
    "matmul": (
        *("fixed_us", "TFLOP_per_s", "GB_per_s", "chain_us", "ramp", "data", "weight", *TILED[:2]),
        *CACHE_KEYS,
    ),
    "conv": PARTS,
    "attention": (
        *("fixed_us", "TFLOP_per_s", "GB_per_s", "rows", "keys", "channels", "backward_TFLOP_per_s"),
        *("backward_rows", OVERLAP, WIDE_KEY, *CACHE_KEYS),
    ),
    "memory": ("fixed_us", *(f"{kind}_GB_per_s" for kind in MEMORY_KINDS), *CACHE_KEYS),
}
"""Keys of each class, in the order in which a device file has them."""
NO_PRIORS: Final[dict[str, float]] = {}


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of one class in the units of a device file, their source, and their fit if there is one."""

    values: dict[str, float]
    source: str
    fit: Fit | None = None

    def only(self, keys: tuple[str, ...]) -> dict[str, float]:
        """The coefficients of some keys, in their order, rounded as in a file."""
        return {key: float(f"{self.values[key]:.{DIGITS}g}") for key in keys if key in self.values}


@dataclass(frozen=True)
class Builder:
    """Builds laws from a folder of measured kernels."""

    folder: Path
    _built: dict[tuple[str, str], Coefficients] = field(default_factory=dict)

    def classes(self, name: str) -> dict[str, Coefficients]:
        """Coefficients of each class of a device's kernels."""
        return {kind: self.of(kind, name) for kind in laws.CLASSES}

    def of(self, kind: str, name: str) -> Coefficients:
        """Coefficients of one class; ``forward`` is that of attention's forward pass alone."""
        if (kind, name) not in self._built:
            build: Callable[[Target, Origin], Coefficients] = getattr(self, f"_{kind}")
            to = target(name)
            self._built[kind, name] = build(to, to.origins["attention" if kind == "forward" else kind])
        return self._built[kind, name]

    def _source(self, *prefixes: str) -> str:
        return rows.provenance(self.folder, *prefixes)

    def _like(self, kind: str, to: Target, origin: Origin) -> dict[str, float]:
        return to.scaled(self.of(kind, origin.like).values, target(origin.like))

    def _paced(self, origin: Origin, values: dict[str, float], fit: Fit) -> Coefficients:
        words = f"as {origin.like}, but for the pace, fitted to {self._source(*origin.rows)}: {fit}"
        return Coefficients(values | dict(fit.values), words + _bounds(fit), fit)

    def _matmul(self, to: Target, origin: Origin) -> Coefficients:
        if origin.like:
            values = self._like("matmul", to, origin)
            values = {key: value for key, value in values.items() if origin.processors or key not in TILED}
            values |= laws.tiles_of(to, origin.processors)
            if origin.traffic:
                other = to.scaled(self.of("matmul", origin.traffic).values, target(origin.traffic))
                values |= {key: other[key] for key in TRAFFIC}
            if not origin.rows:
                words, cooler = SCALED.format(like=origin.like), to.cooler(target(origin.like))
                values["TFLOP_per_s"] *= cooler
                words += f"; traffic as {origin.traffic}" if origin.traffic else ""
                words += (
                    f"; TFLOP_per_s times {cooler:.3f}, by the power of a multiprocessor"
                    if cooler < 1
                    else ""
                )
                return Coefficients(values, words)
            samples = rows.products(self.folder, origin.rows[0], "forward")
            fit = laws.fit_pace(laws.product_seconds, samples, values, to, streams=origin.streams)
            return self._paced(origin, values, fit)
        samples = rows.products(self.folder, origin.rows[0])
        priors = {"fixed_us": self.of("matmul", origin.priors).values["fixed_us"]} if origin.priors else {}
        fit = laws.fit_products(samples, to, priors, origin)
        values = {**fit.fixed, **fit.values}
        factors = laws.gradient_factors(self.folder, origin.gradients, values)
        words = f"{self._source(*origin.rows)}: {fit}{_bounds(fit)}"
        words += f"; data and weight: ratios of medians in {self._source(origin.gradients)}"
        words += f"; fixed_us as {origin.priors}, here not determined" if priors else ""
        return Coefficients(values | factors, words, fit)

    def _conv(self, to: Target, origin: Origin) -> Coefficients:
        if origin.like:
            other = self.of("conv", origin.like)
            return Coefficients(other.values, f"as {origin.like}: {other.source}")
        against = self.of("matmul", origin.device).values
        factors, count = laws.convolution_factors(self.folder, origin.rows[0], against)
        words = f"{self._source(*origin.rows)}, {count} convolutions of stride 1 and 64 channels or more: medians of"
        words += f" measured seconds over those of the matmul law of {origin.device} for the product that each implies"
        return Coefficients(dict(factors), words)

    def _forward(self, to: Target, origin: Origin) -> Coefficients:
        if origin.like:
            values = self._like("forward", to, origin)
            if origin.seen:
                channels = float(padded(np.array(laws.SEEN_CHANNELS))) + values["channels"]
                values["TFLOP_per_s"] = origin.seen * channels / laws.SEEN_CHANNELS
                return Coefficients(values, f"as {origin.like}, but for the pace: {origin.note}")
            if not origin.rows:
                return Coefficients(values, SCALED.format(like=origin.like) + origin.note)
            samples = rows.attention(self.folder, origin.rows)
            start = values | {"causal_us": values["fixed_us"]}
            return self._paced(origin, values, laws.fit_pace(laws.forward_seconds, samples, start, to))
        samples = rows.attention(self.folder, origin.rows)
        causal = bool((samples.shapes[-1] > 0).all())
        priors = self.of("forward", origin.priors).values if causal else NO_PRIORS
        cache = self.of("matmul", to.name).values if origin.cached else {}
        fit = laws.fit_forward(samples, to, priors, cache, origin.overlap)
        words = f"{self._source(*origin.rows)}: {fit}{_bounds(fit)}"
        if causal:
            words += f"; all causal: keys and channels as {origin.priors}"
        values = {"causal_us": 0.0, "tile": 0.0, **fit.fixed, **fit.values}
        if origin.wide:
            values[WIDE_KEY] = laws.wide_factor(origin.wide, values)
            words += f"; wide: {origin.note}"
        if origin.wide_as:
            values[WIDE_KEY] = self.of("forward", origin.wide_as).values[WIDE_KEY]
            words += f"; wide as {origin.wide_as}"
        return Coefficients(values | ({"fixed_us": values["causal_us"]} if causal else {}), words, fit)

    def _attention(self, to: Target, origin: Origin) -> Coefficients:
        forward = self.of("forward", to.name)
        if origin.backward:
            values = forward.values | {"backward_TFLOP_per_s": 1.0, "backward_rows": 0.0}
            tile = {} if origin.backward_tile is None else {"tile": origin.backward_tile}
            unknowns = {
                "backward_TFLOP_per_s": (0.5 * to.flop_peak, to.flop_peak),
                "backward_rows": (values["rows"], laws.NO_BOUND),
            }
            samples = rows.attention(self.folder, [origin.backward], "bwd")
            fit = laws.fit(laws.backward_seconds, samples, unknowns, values | tile)
            fitted = f"backward fitted to {self._source(origin.backward)}: {fit}{_bounds(fit)}"
            words = f"{forward.source}; {fitted}"
            return Coefficients(values | dict(fit.values), words, forward.fit)
        other = self.of("attention", origin.priors or origin.like).values
        values = forward.values | {
            f"backward_{key}": forward.values[key] * other[f"backward_{key}"] / other[key]
            for key in ("TFLOP_per_s", "rows")
        }
        words = f"{forward.source}; backward stands to forward as in {origin.priors or origin.like}"
        return Coefficients(values, words, forward.fit)

    def _memory(self, to: Target, origin: Origin) -> Coefficients:
        values, words = dict[str, float](), list[str]()
        if origin.like:
            values |= self._like("memory", to, origin)
            words.append(SCALED.format(like=origin.like))
        if origin.stream:
            values |= laws.paces(self.folder, origin.stream, origin.device, laws.STREAMS)
            where = f"{self._source(origin.stream)}, {origin.device}"
            words.append(f"pointwise and copy: {where}, arrays beyond any cache")
        if origin.rows:
            ratio = to.bytes_peak / origin.device_peak if origin.device_peak else 1.0  # by data sheets
            rates = laws.paces(self.folder, origin.rows[0], origin.device, laws.OPERATIONS)
            values |= {kind: ratio * rate for kind, rate in rates.items()}
            where = f"{self._source(*origin.rows)}, {origin.device}"
            words.append(f"medians over 50 MB of {where}, float32 in PyTorch")
        for prefix, keys in ((origin.launch, ("fixed_us",)), (origin.cache, CACHE_KEYS)):
            if prefix:
                fit = laws.fit_traffic(self.folder, prefix, keys)
                scaled = to.scaled(fit.values, target(CACHED_ON)) if keys == CACHE_KEYS else fit.values
                values |= {key: scaled[key] for key in keys}
                if origin.streams:
                    ratio = fit.values["GB_per_s"] / values["pointwise_GB_per_s"]
                    values |= {
                        f"{kind}_GB_per_s": ratio * values[f"{kind}_GB_per_s"] for kind in MEMORY_KINDS
                    }
                words.append(f"{' and '.join(keys)}: {self._source(prefix)}: {fit}")
        if origin.launch:
            values["fixed_us"] += laws.BETWEEN_US
            words.append(f"in fixed_us {laws.BETWEEN_US:g} us between two kernels")
        values["group_norm_GB_per_s"] = laws.group_norm(values)
        words.append("group_norm: one pass as softmax and two as pointwise; not measured")
        return Coefficients(values, "; ".join(words))


def _bounds(fit: Fit) -> str:
    """Words for coefficients that rest on a bound."""
    words = "".join(f"; {key} is 0: no such cost shows" for key, value in fit.values.items() if value == 0)
    return words + "".join(f"; {key} rests on its bound, the peak" for key in fit.bound)


def law_text(name: str, builder: Builder) -> str:
    """Tables ``[laws]`` of a device file."""
    by_kind, to = builder.classes(name), target(name)
    peaks = {"peaks": to.peaks, "peak_TFLOP_per_s": to.flop_peak, "peak_GB_per_s": to.bytes_peak}
    classes = {
        kind: {"source": f"{COMMAND}: {each.source}", **each.only(KEYS[kind])}
        for kind, each in by_kind.items()
    }
    return toml_text({"laws": peaks | classes}, "g").lstrip()


CONVNETS_ON: Final = "NVIDIA GeForce RTX 3090"
PEAK: Final = 936.0
"""GB per second (NVIDIA GeForce RTX 3090 data sheet)."""
LIKE: Final = "a100-80gb-sxm"
"""Device of the same architecture, whose copies reach the same share of their peak."""
CONVNETS: Final = {"inference": "timm:infer-amp-", "training": "timm:train-amp-"}
MOVED: Final = {
    "resnet18": 4_666_368, "resnet34": 7_175_168, "vgg13": 20_020_224, "vgg16": 22_629_376, "vgg19": 25_238_528,
    "vgg11_bn": 10_386_432, "vgg13_bn": 20_020_224, "vgg16_bn": 22_629_376, "vgg19_bn": 25_238_528,
}  # fmt: skip
"""Activations that the convolutions of a network read and write for one image of 224 pixels, by the papers.

The networks are those timed in both layouts and both modes (``bn``: with batch norms).
"""
GRADIENTS: Final = 2
"""Convolutions of a backward pass for one of the forward pass."""


def layout_shares(folder: Path) -> dict[str, float]:
    """Seconds of laying out anew over those of copying once: in a forward pass, and in each of the two gradients.

    Kernels of half-precision convolutions need channels last. In PyTorch's own layout cuDNN transposes for them, or
    runs kernels that read or write it themselves. The ratio of the seconds that channels-last saves to those of copying
    once what the convolutions read and write is read off networks of convolutions with windows: VGG (Simonyan and
    Zisserman, arXiv 1409.1556, table 1) and ResNet-18 and -34 (He et al., arXiv 1512.03385, table 1), on an RTX 3090.
    """
    law = load_device(LIKE).laws
    assert law is not None, LIKE
    pace = law.memory.copy_bytes_per_s * PEAK / target(LIKE).bytes_peak
    medians = {}
    for mode in CONVNETS:
        ratios = []
        for network, moved in MOVED.items():
            sources = (f"{CONVNETS[mode]}{layout}" for layout in ("nchw", "nhwc"))
            first, last = (
                1 / rows.throughput(folder, source, CONVNETS_ON, network, mode) for source in sources
            )
            ratios.append((first - last) * pace / (2 * ELEMENT_BYTES * moved))
        medians[mode] = median(ratios)
    forward = medians["inference"]
    return {"forward": forward, "gradient": (medians["training"] - forward) / GRADIENTS}


COLUMNS: Final = ("device", "class", "shapes", "fitted", "left out", "coefficients")
HEAD: Final = "\n[laws]\n"


def report_kernels(options: Namespace) -> None:
    """Fit devices (all where none is named), print coefficients and errors, write the files if asked to."""
    builder = Builder(options.data)
    chosen = options.device or list(targets())
    texts = {name: law_text(name, builder) for name in chosen}
    costs = layout_shares(options.data)
    words = f"a forward pass {costs['forward']:.2f}, each gradient {costs['gradient']:.2f} times their copy"
    title = "Laws of kernels: errors, median / 90th percentile, of seconds"
    errors = table(title, COLUMNS, _rows(builder, chosen), left=("device", "class", "coefficients"))
    show(200, errors, f"new layouts of convolutions: {words}")
    if options.write:
        for name, text in texts.items():
            write_file(DEVICES / f"{name}.toml", with_laws(DEVICES / f"{name}.toml", text))


def with_laws(path: Path, text: str) -> str:
    """Text of a device file, with its laws replaced or added at its end."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; write the device's name, source and memory_GiB first")
    head, _, _ = read_text(path).partition(HEAD)
    return f"{head.rstrip()}\n\n{text}"


def _rows(builder: Builder, names: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        for kind, each in builder.classes(name).items():
            errors = [""] * 3
            if fit := each.fit:
                errors = [str(len(fit.fitted)), *map(_pair, (fit.fitted, fit.left_out))]
            yield [name, kind, *errors, ", ".join(f"{key} {value:.4g}" for key, value in each.values.items())]


def _pair(errors: Errors) -> str:
    return f"{100 * errors.median:.1f} / {100 * errors.tail:.1f} %"
