"""A price list: what nodes of GPUs cost per hour, from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.settings import Settings
from orchestrator.schedule.cluster import of_type
from orchestrator.store.files import read_regular
from sweeps.errors import ConfigError

COLUMNS = ("name", "gpu", "gpus", "price_per_hour", "currency", "date")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A node that can be rented, as one line of a price list."""

    name: str
    gpu: str  # a part of the GPU's name, such as H100
    gpus: int
    price_per_hour: float
    currency: str
    date: str

    def per_hour(self, gpus: float) -> float:
        """Return the price of an hour of as many whole nodes as these GPUs need."""
        return math.ceil(gpus / self.gpus) * self.price_per_hour


def read_prices(file: Path) -> list[Offer]:
    """Return the offers of a local file. Raises ConfigError with all errors."""
    try:
        rows = csv.reader(io.StringIO(read_regular(file).decode("utf-8-sig")))
        # A quoted value may have several lines.
        lines = [(rows.line_num, [value.strip() for value in row]) for row in rows]
        lines = [(number, values) for number, values in lines if any(values)]  # not the empty rows of a spreadsheet
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError([f"forecast.prices={file} cannot be read: {error}"]) from error
    header = lines[0][1] if lines else []
    if header != list(COLUMNS):
        raise ConfigError([f"forecast.prices={file} has the columns {', '.join(header)}: write {', '.join(COLUMNS)}"])
    offers, errors = [], []
    for number, values in lines[1:]:
        try:
            name, gpu, gpus, price, currency, date = values
            offer = Offer(name=name, gpu=gpu, gpus=int(gpus), price_per_hour=float(price), currency=currency, date=date)
        except ValueError:
            offer = None
        if offer and offer.gpu and offer.gpus > 0 and 0 <= offer.price_per_hour < math.inf:
            offers.append(offer)
        else:
            wanted = f"{len(COLUMNS)} values, with a GPU's name, its number and a price of at least 0"
            errors.append(f"{file}, line {number}: write {wanted}")
    currencies = sorted({offer.currency for offer in offers})
    if len(currencies) > 1:
        errors.append(f"{file}: prices in {' and '.join(currencies)} cannot be compared: write one currency")
    if errors:
        raise ConfigError(errors)
    return offers


def offers_of(settings: Settings) -> list[Offer]:
    """Return the offers of `forecast.prices`; none if `report.price_per_gpu_hour` is set. Raises ConfigError."""
    file = settings.forecast.prices
    return read_prices(Path(file)) if file and settings.report.price_per_gpu_hour is None else []


def cheapest_offer(offers: Sequence[Offer], gpu_type: str, gpus: float) -> Offer | None:
    """Return the offer with this type of GPU whose nodes for so many GPUs cost least; None if there is none."""
    suitable = [offer for offer in offers if of_type(gpu_type, offer.gpu)]
    return min(suitable, key=lambda offer: offer.per_hour(gpus), default=None)
