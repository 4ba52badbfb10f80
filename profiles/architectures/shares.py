"""Shares: the part of a layer's work that one device does."""

from typing import Final, NamedTuple

REPLICATED_SHARE: Final = 1 / 3
"""Share of a block's hidden states that tensor parallelism leaves whole: input, norm and sum, 4 of 12. The other 8 are
inside attention and feed-forward, whose inner width is four times the outer (Megatron-LM, section 3)."""
HALF_BYTES: Final = 2.0
"""Sampling runs in half precision, whatever precision a model is trained in."""
ELEMENT_BYTES: Final = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}


class Share(NamedTuple):
    """The part of a layer's work at the whole image that one device does.

    Attributes:
        rows: share of the image's rows that it computes; all tokens of the text come with them.
        keys: share of the image's rows that those attend to.
        ring: devices among which tokens are divided and around which keys and values pass, one attention after another.
        ulysses: devices among which tokens are divided, and in self-attention the heads.
        tensor: devices among which matrices and heads are divided.
        whole_text: whether each device of a sequence computes all tokens of the text; of attention, on its heads.
        sequence_parallel: whether what tensor parallelism leaves whole has its tokens divided among its devices
            (Korthikanti et al., Reducing Activation Recomputation, 2022, section 4.2.2).
        device_rows: rows of devices, among which self-attention divides its queries.
        device_columns: their columns, among which it divides its keys; tokens are divided by both.
    """

    rows: float = 1.0
    keys: float = 1.0
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    whole_text: bool = False
    sequence_parallel: bool = False
    device_rows: int = 1
    device_columns: int = 1

    @property
    def sequence(self) -> int:
        """Devices among which the tokens are divided."""
        return self.ring * self.ulysses * self.device_rows * self.device_columns

    @property
    def held(self) -> float:
        """Share of a sample's activations that one device holds under sequence parallelism."""
        return 1 / (self.sequence * self.tensor)

    @property
    def text(self) -> int:
        """Devices among which the tokens of the text are divided."""
        return 1 if self.whole_text else self.sequence

    @property
    def replicated(self) -> float:
        """Share of the memory traffic: each device of ``tensor`` runs norms and sums on whole hidden states."""
        if self.sequence_parallel:
            return 1 / self.tensor
        return REPLICATED_SHARE + (1 - REPLICATED_SHARE) / self.tensor


WHOLE: Final = Share()
