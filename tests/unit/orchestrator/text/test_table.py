import pandas as pd

from orchestrator.text.table import latex_table

LATEX = r"""% needs booktabs, longtable and amssymb
\begin{longtable}{lllll}
\caption{Speed-up: 100\% \$x\_y\$} \\
\toprule
cell & global batch & samples/s & speed-up & efficiency \\
\midrule
\endfirsthead
\toprule
cell & global batch & samples/s & speed-up & efficiency \\
\midrule
\endhead
\midrule
\multicolumn{5}{r}{Continued on next page} \\
\midrule
\endfoot
\bottomrule
\endlastfoot
1$\times$32 a\&b\_\{ & 32 & 1,000 & 1$\times$ (baseline) &  \\
2$\times$32 a\&b\_\{ & 64 & 1,900 & 1.90$\times$ & 95\% \\
\end{longtable}
"""


def test_latex_escapes_text_and_signs() -> None:
    frame = pd.DataFrame(
        {
            "cell": ["1×32 a&b_{", "2×32 a&b_{"],
            "global batch": [32, 64],
            "samples/s": ["1,000", "1,900"],
            "speed-up": ["1× (baseline)", "1.90×"],
            "efficiency": ["", "95%"],
        }
    )
    assert latex_table(frame, "Speed-up: 100% $x_y$") == LATEX


def test_latex_wraps_long_texts() -> None:
    frame = pd.DataFrame({"gpus": ["1", "2"], "note": ["", "others took 47% of the cores' time, most of it python"]})
    assert latex_table(frame, "Speed-up").splitlines()[1] == r"\begin{longtable}{lp{0.3\linewidth}}"
