"""Print the figures of docs/results/published/findings.md as the kept journals have them.

    python -m benchmarks.findings.report

A figure that the page does not have is marked. A test compares all of them with the page.
"""

from __future__ import annotations

import argparse

from benchmarks.findings import batch_vs_tpu, conv2d, data_parallel, input_pipeline, unequal_pair
from benchmarks.findings.kept_trials import missing

FIGURES = (
    *(unequal_pair.unequal_pair, unequal_pair.second_gpu),
    *(batch_vs_tpu.batch_vs_tpu, batch_vs_tpu.rules, batch_vs_tpu.placements),
    *(input_pipeline.input_pipeline, data_parallel.data_parallel, data_parallel.loss_curves, conv2d.conv2d),
)
"""Functions that return the figures of an experiment, as the page writes them."""


def main() -> None:
    """Print each figure."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for figures in FIGURES:
        lines = figures()
        absent = missing(lines)
        print(f"# {figures.__name__}", *(f"{'NOT ON THE PAGE: ' * (line in absent)}{line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
