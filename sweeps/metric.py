"""Metrics: the usual name of a metric that programs name in other ways, which direction is better, and its target."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

_LOWER = frozenset(
    "loss error err perplexity ppl bits bpb bpc bpd bpt nll ce bce rmse rmsle mae mse mape smape msle wape fid kid wer"
    " cer ter ece brier lpips chamfer epe eer regret divergence kl crossentropy".split()
)
_HIGHER = frozenset(
    "accuracy acc top1 top3 top5 acc1 acc5 f1 fbeta precision recall auc auroc auprc ap map map50 bleu sacrebleu rouge"
    " rouge1 rouge2 rougel chrf meteor cider miou iou dice psnr ssim r2 reward rewards return returns mcc kappa ndcg"
    " mrr em match hits spearman pearson elo likelihood elbo sensitivity specificity winrate sharpe"
    " pass success win rew".split()
)
"""The last words of metrics of which more is better."""

_OPPOSITE = frozenset("neg negative minus inverse inverted inv non".split())
"""Words that reverse the direction, or not: the name does not tell."""

_STATISTIC = frozenset(
    "mean avg average median std epoch final best last ema val valid validation test eval dev train rate score per"
    " micro macro weighted at k n global local token byte char word pct percent l".split()
)
"""Words that say how a metric was computed, and nothing on its direction."""

_SYNONYMS = {
    **dict.fromkeys(("acc", "accuracies", "acc1", "top1", "top_1", "acc_1", "accuracy1"), "accuracy"),
    **dict.fromkeys(("validation", "valid", "eval", "evaluation", "dev"), "val"),
    **dict.fromkeys(("training", "trn"), "train"),
    "losses": "loss",
}
_IGNORED = frozenset("epoch avg mean average metrics metric sparse categorical binary multiclass".split())
"""Words of a name that the usual name leaves out."""

_PLAIN = {"train_loss": "loss", "test_accuracy": "accuracy"}
"""Names that tell no more than the plain name of the metric."""

_RANKED = re.compile(r"(?:top|acc(?:uracy)?)[-_@ ]?1(?![0-9])(?:[-_ ]?acc(?:uracy)?)?", re.IGNORECASE)


def is_higher_better(name: str) -> bool | None:
    """Return whether more of this metric is better, by the words of its name; None if they do not tell.

    The last word counts that says more than how the metric was computed: in `top1_err` and `error_rate` an error.
    """
    # Capitals may begin words, as in `valLoss`, or not, as in `rougeL`.
    for words in (_words(name), _words(name.lower())):
        telling = [word for word in words if not (word in _STATISTIC or word.isdigit())]
        if not telling or _OPPOSITE & set(words):
            return None
        forms = {telling[-1], telling[-1].rstrip("0123456789")}
        if forms & (_LOWER | _HIGHER):
            return not forms & _LOWER
    return None


def usual_name(name: str) -> str:
    """Return the name that the metric has in the results: `val_accuracy` for `eval/acc`, `loss` for `train_loss`."""
    words = [_SYNONYMS.get(word, word) for word in _words(_RANKED.sub("accuracy", name))]
    # `Loss/val` of TensorBoard is a `val_loss`.
    words.sort(key=lambda word: word not in ("train", "val", "test"))
    # A word that follows itself is left out, as in `val/val_loss`.
    joined = "_".join(word for word, _ in groupby(word for word in words if word not in _IGNORED))
    return _PLAIN.get(joined, joined)


def column_of(name: str) -> str:
    """Return the column of the results that a metric belongs to: `val_accuracy` for `val_acc`, else the name itself."""
    usual = usual_name(name)
    return usual if usual in ("val_accuracy", "val_loss") else name


def named_metric(config: Mapping[str, Any]) -> str:
    """Return the name in `report.metric`; `auto` without one."""
    metric = (config.get("report") or {}).get("metric", "auto")
    return str(metric.get("name") if isinstance(metric, Mapping) else metric)


def _words(name: str) -> list[str]:
    """Return the words of a name in lower case, of `valLoss` and `val/top-5` as well."""
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    separated = re.sub(r"(?i)cross[_ -]entropy", "crossentropy", separated)
    return re.findall(r"[a-z0-9]+", separated.lower())


@dataclass(frozen=True, kw_only=True)
class Target:
    """A value that a validation metric shall reach, `report.target` in a sweep's config."""

    metric: str
    value: float  # in the metric's unit
    higher_is_better: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Target | None:
        """Return the target in the config that a trial receives; None if it has none."""
        target = (config.get("report") or {}).get("target")
        return None if target is None else Target(**target)

    def reached(self, epochs: Iterable[tuple[float, float | None]]) -> dict[str, float]:
        """Return the time and the epochs up to the end of the first epoch that reaches the target; {} if none does.

        Each epoch is given as its training time in seconds and the metric at its end, None if it was not measured.
        """
        spent: list[float] = []
        for epoch_s, metric in epochs:
            spent.append(epoch_s)
            if metric is None:
                continue
            if metric >= self.value if self.higher_is_better else metric <= self.value:
                return {"time_to_target_s": math.fsum(spent), "epochs_to_target": len(spent)}
        return {}
