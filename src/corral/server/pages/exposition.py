"""Writes metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from corral.model.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Exposition:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._family(name, about, "gauge", samples)

    def counter(self, name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._family(name, about, "counter", samples)

    def histogram(self, name: str, about: str, samples: Iterable[tuple[Labels, Histogram]]) -> None:
        histograms = list(samples)
        if not histograms:
            return
        self._head(name, about, "histogram")
        for labels, histogram in histograms:
            counts, so_far = list(histogram.counts), 0  # a copy, because another thread may add values meanwhile
            for bound, count in zip([*map(_number, histogram.bounds), "+Inf"], counts):
                so_far += count
                self._lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {so_far}")
            self._lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.sum)}")
            self._lines.append(f"{name}_count{_labels(labels)} {so_far}")

    def text(self) -> str:
        return "\n".join([*self._lines, ""])

    def _family(self, name: str, about: str, kind: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Write a metric with all its samples. A metric without samples is left out."""
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._head(name, about, kind)
            self._lines += lines

    def _head(self, name: str, about: str, kind: str) -> None:
        help_text = about.replace("\\", "\\\\").replace("\n", "\\n")
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
