"""What a benchmark of the detector must reach."""

from dataclasses import dataclass


@dataclass
class Bar:
    """A number and what it must be: at least ``bar``, or at most."""

    text: str
    value: float
    bar: float
    unit: str
    most: bool = False

    @property
    def is_met(self):
        return self.value <= self.bar if self.most else self.value >= self.bar

    def line(self):
        sign = "at most" if self.most else "at least"
        met = "met" if self.is_met else "NOT MET"
        value = f"{self.value:.2f}".rstrip("0").rstrip(".")
        return f"{self.text:64s} {value:>7s}{self.unit:1s}  {sign} {self.bar:g}{self.unit}: {met}"
