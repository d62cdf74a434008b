"""Draw the layouts' tokens per second against memory, from the results of `benchmarks.layouts`.

python -m benchmarks.layouts_plot docs/results/layouts/four_h200.json docs/pictures/layouts.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

MODEL = "3b"
LABELS = {
    "compile-fsdp-grad": "fsdp_grad",
    "compile-fsdp-grad-ac": "fsdp_grad, recomputed",
    "compile-hybrid-ac": "fsdp_size: 2, recomputed",
    "compile-tp2-ac": "tensor_parallel: 2, recomputed",
    "compile-tp-ac": "tensor_parallel: 4, recomputed",
}
"""{options of a case: its layout as the page names it}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": MODEL}  # text stays text; equal data, equal file
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for row in json.loads(given.results.read_text())["rows"]:
        model, _, options = row["case"].split(":")
        if model != MODEL:
            continue
        ours, yardstick = row["ours"], row.get("beside")
        place = (ours["peak_gb"], ours["tokens_per_s"] / 1e3)
        [dots] = axes.plot(*place, "o")
        axes.annotate(LABELS[options], place, xytext=(6, 4), textcoords="offset points", fontsize=8)
        if yardstick:
            there = (yardstick["peak_gb"], yardstick["tokens_per_s"] / 1e3)
            axes.plot(*there, "o", markerfacecolor="none", color=dots.get_color())
    axes.plot([], [], "o", markerfacecolor="none", color="gray", label="plain PyTorch")
    axes.set(xlabel="GB per GPU", ylabel="thousand tokens/s", title="3B parameters on four H200, 16 sequences of 2,048")
    axes.set(xlim=(10, 52), ylim=(0, 130))
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(given.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
