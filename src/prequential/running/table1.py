"""The paper's Table 1: which rows it has, and whether their order comes out again."""

from __future__ import annotations

from itertools import combinations

STREAM = "photos"
EXAMPLES = 100_000
# Average accuracy on CLOC with features that are given, in per cent. The last label is from the text, the others from
# the table, whose rows on networks trained from scratch and on other features have no counterpart here.
PAPER = {
    "last-label": 12,
    "er": 20,
    "acm": 26,
    "replay-streams": 38,
    "kalman": 30,
    "no-image": 18,
    "no-attention": 19,
    "transformer": 59,
}


def check_order(found: dict[str, tuple[float, float, float]]) -> list[str]:
    """What became of the order of the paper's rows: a sentence in sum, then one on each pair that came out otherwise.

    Parameters
    ----------
    found
        Mean, lowest and highest accuracy over the seeds of each learner that finished.

    Examples
    --------
    >>> for line in check_order({"acm": (0.31, 0.3, 0.32), "kalman": (0.29, 0.28, 0.31), "er": (0.1, 0.1, 0.1)}):
    ...     print(line)
    2 of 3 pairs of rows are in the paper's order.
    The paper has kalman (30 %) above acm (26 %); here kalman has 29.0 % and acm 31.0 % (their ranges over the seeds overlap).
    Not compared, because there is no result: last-label, replay-streams, no-image, no-attention, transformer.
    """
    rows = sorted((name for name in PAPER if name in found), key=PAPER.__getitem__, reverse=True)
    pairs = list(combinations(rows, 2))  # the first of each is above the second in the paper
    lines = []
    for above, below in pairs:
        if found[above][0] <= found[below][0]:
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
