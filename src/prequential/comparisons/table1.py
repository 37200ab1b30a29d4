"""The paper's Table 1: which rows it has, and whether their order comes out again.

Our rows are not in all points the paper's:

- the transformers are the paper's method alone (`method=paper, recent_window=0`), without what this package adds by
  default, so that "no attention" is a function of x_t and nothing else;
- the paper's ER is a pretrained network that is fine-tuned, ours a linear classifier on features that stay as they are;
- the paper's Replay Streams and Kalman filter stand in the table twice, on features that are given and with a network
  learned from scratch. For the second we have a network learned online on top of the given features (`LEARNED`);
- the transformer on other features (MAE ViT-L, 70 %) and the one learned from scratch (67 %) have no row here: the
  stream has one kind of features and no images. The last label is from the paper's text.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import combinations

STREAM = "photos"
EXAMPLES = 100_000
OWN = "transformer(method=paper,recent_window=0)"
# Average accuracy on CLOC in percent, by learner.
PAPER = {
    "last-label": 12,
    "er": 20,
    "acm": 26,
    "replay-streams(hidden_sizes=[])": 38,
    "replay-streams(hidden_sizes=[256])": 37,
    "kalman": 30,
    "kalman-network": 37,
    "no-image(method=paper,recent_window=0)": 18,
    "no-attention(method=paper,recent_window=0)": 19,
    OWN: 59,
}
LEARNED = ("replay-streams(hidden_sizes=[256])", "kalman-network")
LEARNED_NOTE = (
    f"{' and '.join(LEARNED)} stand for the paper's rows with a network learned from scratch; here it is learned "
    "online on top of the given features. The paper's ER fine-tunes its network, er here does not."
)


def row_name(learner: str) -> str:
    """The name of a row without its settings.

    >>> row_name("replay-streams(hidden_sizes=[256])"), row_name("acm")
    ('replay-streams (learned)', 'acm')
    """
    name, bracket, _ = learner.partition("(")
    return f"{name} (learned)" if learner in LEARNED and bracket else name


def misplaced(found: dict[str, float]) -> list[tuple[str, str]]:
    """The pairs of rows of which the first is above the second in the paper, and not here; the paper's best rows first.

    >>> misplaced({"acm": 0.31, "kalman": 0.29, "er": 0.1})
    [('kalman', 'acm')]
    """
    return [(above, below) for above, below in _pairs(found) if found[above] <= found[below]]


def _pairs(found: Container[str]) -> list[tuple[str, str]]:
    """All pairs of these rows of which the first is above the second in the paper."""
    rows = sorted((name for name in PAPER if name in found), key=PAPER.__getitem__, reverse=True)
    return [(above, below) for above, below in combinations(rows, 2) if PAPER[above] > PAPER[below]]


def check_order(found: dict[str, tuple[float, float, float]]) -> list[str]:
    """What became of the order of the paper's rows: a sentence in sum, then one on each pair that came out otherwise.

    Rows with the same number in the paper are not a pair.

    Parameters
    ----------
    found
        Mean, lowest and highest accuracy over the seeds of each learner that finished.

    Examples
    --------
    >>> for line in check_order({"acm": (0.31, 0.3, 0.32), "kalman": (0.29, 0.28, 0.31), "er": (0.1, 0.1, 0.1)})[:2]:
    ...     print(line.partition(" (their")[0])
    2 of 3 pairs of rows are in the paper's order.
    The paper has kalman (30 %) above acm (26 %); here kalman has 29.0 % and acm 31.0 %
    """
    pairs = _pairs(found)
    lines = []
    for above, below in misplaced({name: mean for name, (mean, _, _) in found.items()}):
        spread = any(found[name][1] < found[name][2] for name in (above, below))
        overlap = spread and found[above][2] >= found[below][1]
        lines.append(
            f"The paper has {above} ({PAPER[above]} %) above {below} ({PAPER[below]} %); here {above} has "
            f"{100 * found[above][0]:.1f} % and {below} {100 * found[below][0]:.1f} %"
            + (" (their ranges over the seeds overlap)." if overlap else ".")
        )
    lines.insert(0, f"{len(pairs) - len(lines)} of {len(pairs)} pairs of rows are in the paper's order.")
    absent = [name for name in PAPER if name not in found]
    if absent:
        lines.append(f"Not compared, because there is no result: {', '.join(absent)}.")
    return lines
