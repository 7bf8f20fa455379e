"""The tables of docs/warplens_races.md; `python -m planted.page`, beside this folder, writes them.

What CUDASIM and triton-viz say was seen in runs, what compute-sanitizer says is its documentation.
"""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "warplens_races.md"
TABLES = re.compile(r"(?<=<!-- BEGIN planted -->\n).*?(?=<!-- END planted -->)", re.S)

# What CUDASIM says other than "nothing", by the name of a kernel: `planted.under_cudasim`.
NO_SHUFFLES = dict.fromkeys(
    "butterfly butterfly_in_a_branch half_a_butterfly neighbours_of_a_warp neighbours_of_two_warps "
    "votes".split(),
    "AttributeError",
)
CUDASIM = NO_SHUFFLES | {
    "copy_without_a_check": "IndexError",
    "histogram_shifted_by_one": "IndexError",
    "too_little_dynamic_memory": "IndexError",
    "stride_of_nothing": "hangs",
}
VIZ = {"scaled_without_a_mask": "out of bounds"}  # of triton-viz 3.0 with Triton 3.7.1
NOTHING, UNKNOWN = "–", "?"


def cudasim(case):
    if case.topic in ("triton", "gluon"):
        return ""
    verdict = CUDASIM.get(case.name, NOTHING)
    return "not supported" if case.name in NO_SHUFFLES else verdict


def viz(case):
    return VIZ.get(case.name, NOTHING) if case.topic == "triton" else ""


def sanitizer(case):
    """The tool of compute-sanitizer whose documentation says that it looks for such a fault."""
    if case.topic == "gluon":
        return UNKNOWN
    if case.finds.startswith("race"):
        return "racecheck" if case.finds == "race on s" or "s_" in case.finds else NOTHING
    if case.name == "smooth_from_the_first":
        return NOTHING  # numba makes x[63] of x[-1]
    if case.name in ("butterfly_in_a_branch", "mirrored_by_all_but_one"):
        return UNKNOWN
    tools = {"OutOfBounds": "memcheck", "DivergentBarrier": "synccheck", "EndlessLoop": "hangs"}
    return tools.get(case.finds, NOTHING)


def tables(cases):
    heads = "kernel", "planted", "warplens", "CUDASIM", "triton-viz", "compute-sanitizer"
    rows = [heads, ["---"] * len(heads)]
    for case in cases:
        if case.planted:
            says = f"`{case.finds}`" if case.finds[0].isupper() else case.finds
            verdicts = cudasim(case), viz(case), sanitizer(case)
            rows.append([f"`{case.name}`", case.planted, says, *verdicts])
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    right = {}
    for case in cases:
        if not case.planted:
            right.setdefault(case.topic, []).append(f"`{case.name}`")
    lines = [
        f"| [{topic}]({_file(topic)}) | {', '.join(names)} |" for topic, names in right.items()
    ]
    return "\n".join([text, "", "| topic | nothing is wrong with |", "|---|---|", *lines, ""])


def _file(topic):
    file = f"of_{topic}.py" if topic in ("triton", "gluon") else f"{topic}.py"
    return f"../warplens/tests/planted/{file}"


if __name__ == "__main__":
    import planted

    text = tables(planted.every(planted.NUMBA + planted.TRITON))
    PAGE.write_text(TABLES.sub(lambda _: text, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
