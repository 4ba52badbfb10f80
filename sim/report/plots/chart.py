"""The figure that all charts are plotted on, apart from them since matplotlib takes long to import."""

from io import BytesIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure


class Chart(Figure):
    """A figure that a notebook displays although ``pyplot`` never saw it."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Save with TrueType fonts in PDF, which journals ask for, and with reproducible names in SVG."""
        with mpl.rc_context({"svg.hashsalt": "diffusim", "pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(*args, **kwargs)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()
