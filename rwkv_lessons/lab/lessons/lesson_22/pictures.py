"""Pictures of the delta rule: what one token does to a small state, and how a state can be cut."""

import torch

from warplens.pictures import style
from warplens.pictures.style import Picture

OLD, OUT, NEW = style.LOAD, style.OKABE_ITO["purple"], style.STORE


def replaced(s, key, value):
    """One token with a = -κ, b = κ, no decay: the state before and after it, and lookups.

    Args:
        s: state `[2, 2]`, keys × values.
        key: κ, a unit vector `[2]`; value: v `[2]`, what is written under it.
    """
    answer = key @ s
    removed, added = -torch.outer(key, answer), torch.outer(key, value)
    after = s + removed + added
    figure = style.figure(2.9)
    panels = figure.subplots(1, 5, width_ratios=(1, 1, 1, 1, 1.9))
    parts = (
        ("S, before", s, OLD),
        ("bᵀ(aS): removed", removed, OUT),
        ("kᵀv: added", added, NEW),
        ("S, after", after, style.OKABE_ITO["green"]),
    )
    for ax, (title, matrix, colour), sign in zip(panels, parts, ("+", "+", "=", ""), strict=False):
        _numbers(ax, matrix, colour)
        ax.set_title(title)
        ax.text(2.14, 1, sign, va="center", size=12)
    _answers(panels[4], s, after, key, value)
    across = torch.stack([key[1], -key[0]])
    texts = [f"κ looks up: {_pair(answer)} before, {_pair(key @ after)} after"]
    lookups = f"{_pair(across @ s)} before, {_pair(across @ after)} after"
    texts.append(f"a key at a right angle looks up: {lookups}")
    texts.append(f"if nothing were removed, κ would look up: {_pair(key @ (s + added))}")
    return Picture(figure, "\n".join(texts))


def _numbers(ax, matrix, colour):
    for i in range(2):
        for j in range(2):
            style.box(ax, j, i, 1, 1, colour, edge="white", alpha=0.3)
            text = f"{float(matrix[i, j]):.2f}".replace("-", "−")
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", size=9)
    ax.set(xlim=(-0.05, 2.35), ylim=(2.1, -0.1), aspect="equal", xticks=[], yticks=[])
    ax.set_xlabel("values")
    ax.set_ylabel("keys")
    for spine in ax.spines.values():
        spine.set_visible(False)


def _answers(ax, s, after, key, value):
    """What κ and a key at a right angle to it look up, before and after, as arrows."""
    across, sum_only = torch.stack([key[1], -key[0]]), key @ s + value
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 12}
    for end, colour, look, text, place in (
        (key @ s, OLD, "-", "κS before", (4, 5)),
        (key @ after, NEW, "-", "κS after = v", (-30, 6)),
        (across @ s, style.OKABE_ITO["green"], "-", "other key: as before", (-62, -12)),
        (sum_only, style.INK, ":", "κS if only added", (4, 2)),
    ):
        x, y = (float(n) for n in end)
        style_of_arrow = arrow | {"color": colour, "linestyle": look, "linewidth": 1.6}
        ax.annotate("", (x, y), (0, 0), arrowprops=style_of_arrow)
        ax.annotate(text, (x, y), place, textcoords="offset points", size=8, color=colour)
    ends = torch.stack([key @ s, key @ after, across @ s, sum_only])
    low, high = ends.amin(0).clamp_max(0).tolist(), ends.amax(0).clamp_min(0).tolist()
    ax.set(xlim=(low[0] - 1.0, high[0] + 0.9), ylim=(low[1] - 0.5, high[1] + 0.5))
    ax.axhline(0, color=style.FAINT, zorder=0)
    ax.axvline(0, color=style.FAINT, zorder=0)
    ax.set(xlabel="first value", ylabel="second value")
    ax.set_title("what a key looks up")


def cuts(K=8, V=8, programs=4):
    """A state cut along its keys and along its values: which programs compute z."""
    figure = style.figure(3.3)
    panels = figure.subplots(1, 2)
    colours = [style.OKABE_ITO[n] for n in ("blue", "orange", "green", "purple")]
    for ax, title, rows in (
        (panels[0], "keys cut: every z is a sum over programs", True),
        (panels[1], "values cut: each z is computed within a program", False),
    ):
        for i in range(K):
            for j in range(V):
                n = i * programs // K if rows else j * programs // V
                style.box(ax, j, i, 1, 1, colours[n], edge="white", alpha=0.45)
        for i in range(K):
            n = i * programs // K
            style.box(ax, -2, i, 1, 1, colours[n] if rows else style.FAINT, edge="white", alpha=0.8)
        for j in range(V):
            n = j * programs // V
            style.box(
                ax, j, K + 1.6, 1, 1, style.FAINT if rows else colours[n], edge="white", alpha=0.8
            )
        ax.text(-1.5, -0.4, "a", ha="center", size=10)
        ax.text(V + 0.3, K + 2.1, "z", va="center", size=10)
        ax.text(V + 0.3, K / 2, "S", va="center", size=10)
        for n in range(programs):
            if rows:
                start = V * (n + 0.5) / programs
                starts = [(start * 0.5 + V * 0.25, K * (n + 1) / programs - 0.2)]
                ends = [(V / 2, K + 1.5)]
            else:
                x = V * (n + 0.5) / programs
                starts, ends = [(x, K - 0.2)], [(x, K + 1.5)]
            for start, end in zip(starts, ends, strict=True):
                arrow = {"arrowstyle": "-|>", "color": colours[n], "linewidth": 1.8}
                ax.annotate("", end, start, arrowprops=arrow)
        ax.set(xlim=(-2.2, V + 1), ylim=(K + 2.8, -1), aspect="equal", xticks=[], yticks=[])
        ax.set_title(title)
        ax.axis("off")
    return Picture(
        figure,
        f"{programs} programs, {K} × {V}: keys cut, each z waits for {programs} programs; "
        "values cut, for one",
    )


def _pair(x):
    return "({:.2f}, {:.2f})".format(*(float(n) + 0.0 for n in x))
