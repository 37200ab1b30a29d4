"""The picture of all claims."""

from prequential.plots.claims import FARTHEST, VERDICT_COLORS, ClaimRow, draw_claims

ROWS = [
    ClaimRow("one", "Up.", "holds", "", 0.3, 0.2, 0.4),
    ClaimRow("one", "Far up.", "holds", "", 9.0, 8.9, 9.1),
    ClaimRow("two", "Down.", "does not hold", "", -0.3, -0.4, -0.2),
    ClaimRow("two", "Around.", "cannot be said", "within seed noise", 0.0, -2.0, 2.0),
    ClaimRow("two", "Alone.", "cannot be said", "one seed"),
    ClaimRow("two", "Long.", "cannot be said", "`x` " * 40, 0.1, 0.1, 0.1),
]


def test_a_bar_is_its_interval_in_half_widths():
    axes = draw_claims(ROWS).axes[0]
    bars = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_color() in VERDICT_COLORS.values()]
    expected = [(2, 4), (FARTHEST, FARTHEST), (-4, -2), (-1, 1)]  # none for one seed, nor where the width is zero
    assert [tuple(round(float(x), 6) for x in bar.get_xdata()) for bar in bars] == expected
    assert [bar.get_color() for bar in bars] == [VERDICT_COLORS[row.verdict] for row in ROWS[:4]]
    heights = [bar.get_ydata()[0] for bar in bars]
    assert heights == [1, 2, 4, 5]  # the names of the experiments have rows, too


def test_names_and_verdicts_stand_beside_the_bars():
    texts = [text.get_text() for text in draw_claims(ROWS).axes[0].texts]
    assert [text for text in texts if text in ("one", "two")] == ["one", "two"]
    assert texts[:4] == ["one", "Up.", "holds", "Far up."]
    assert "cannot be said: one seed" in texts
    assert texts[-1].startswith("cannot be said: x x")
    assert texts[-1].endswith("…")
