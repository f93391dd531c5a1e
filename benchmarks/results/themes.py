"""SVGs that follow the reader's colour scheme; where none is known, their middle tones stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from matplotlib.figure import Figure

from swiftqueue.models.scoring.plot_style import INK, svg

# A tone that is drawn: the one on light pages, the one on dark pages.
TONES: Final[Mapping[str, tuple[str, str]]] = {
    INK: ("#424a53", "#b7bfc8"),
    "#e64980": ("#c2255c", "#f783ac"),
}


def themed(draw: Callable[[], Figure]) -> bytes:
    """Return what `draw` draws as SVG whose text, lines and marks take the page's colour scheme."""
    drawn = svg(draw)
    head, defs, rest = drawn.partition(b"<defs>\n")
    return head + _style().encode() + defs + rest


def _style() -> str:
    """Return the rules for a light and for a dark scheme, which count more than what a shape says itself."""
    lines = ['<style id="schemes">']
    for place, scheme in enumerate(("light", "dark")):
        rules = [
            f'[style*="{shape}: {tone}"] {{ {shape}: {chosen[place]} !important }}'
            for tone, chosen in TONES.items()
            for shape in ("fill", "stroke")
        ]
        lines += [f"@media (prefers-color-scheme: {scheme}) {{", *rules, "}"]
    return "\n".join([*lines, "</style>", ""])
