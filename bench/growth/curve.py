"""What was measured against something that grows: figures at each of its sizes, and what they are to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import results


@dataclass(frozen=True, slots=True)
class Curve:
    """`values` has the figures of each line at the sizes `at`."""

    title: str
    against: str
    at: Sequence[int]
    values: Mapping[str, Sequence[float]]
    unit: str
    note: str

    def to_first(self, name: str) -> list[float]:
        """Each figure of a line to its first."""
        return [value / self.values[name][0] for value in self.values[name]]

    @property
    def table(self) -> str:
        """A row for each size."""
        header = [self.against]
        columns = [[f"{size:,}" for size in self.at]]
        form = ",.2f" if self.unit == "ms" else ",.0f"
        for name, values in self.values.items():
            header += [f"{name}, {self.unit}", "to the first"]
            columns += [[format(value, form) for value in values], [f"{ratio:.2f} ×" for ratio in self.to_first(name)]]
        return f"{results.table(header, list(zip(*columns, strict=True)))}\n\n{self.note}"


def powers_of_ten(least: int, most: int) -> list[int]:
    """From one power to another."""
    sizes = [least]
    while sizes[-1] * 10 <= most:
        sizes.append(sizes[-1] * 10)
    return sizes
