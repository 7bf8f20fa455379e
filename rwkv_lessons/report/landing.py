"""What the front page of the site begins with, and the signs on every page of a lesson.

- `hero`: what the course is, the ladder, a check in motion, and where to try it: one screen.
- `signs`: the ways to open a lesson, on its page.
- `card`: the picture that a shared link shows.

The check in motion is text, not a film: what `check` prints for a wrong kernel of lesson 00 and for
the right one. A script reveals it line by line; without it, or for a reader who asks for less
motion, all of it stands there at once.
"""

import contextlib
import html
import io
from pathlib import Path

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.language import say
from rwkv_lessons.lab.course.wrong_answers import wrong_answers
from rwkv_lessons.operations.entries import ROOT
from rwkv_lessons.report.address import address

EXERCISE, WRONG = "00_start_here.block_sums", "nobody_waits"
CLAIM = (
    "Learn to write fast GPU kernels: from five Python loops to kernels several times as fast as "
    "the ones people use today. 31 notebooks, each with exercises that check themselves. "
    "<strong>You need no GPU.</strong>"
)


def hero(root: Path = ROOT) -> str:
    """The first screen, as HTML for a page of Markdown."""
    buttons = [
        f'<a class="button first" href="#begin">{say("Install")}</a>',
        f'<a class="button" href="notebooks/00_start_here.html">{say("Read lesson 00")}</a>',
        *(_link(*way, style=' class="button"') for way in signs("00_start_here", root)),
    ]
    ladder = say("The time of each step of the RWKV-5 ladder: from 18.4 ms to 1.8 ms on an H200")
    caption = say("One recurrence, seven lessons: each bar is a kernel that you write.")
    return (
        f'<div class="hero">\n<p class="claim">{say(CLAIM)}</p>\n'
        f'<p class="buttons">{" ".join(buttons)}</p>\n'
        f'<div class="two"><figure><img src="_static/ladder.svg" alt="{ladder}">'
        f"<figcaption>{caption}</figcaption></figure>\n{_motion()}</div>\n</div>\n"
    )


def signs(stem: str, root: Path = ROOT) -> list[tuple[str, str]]:
    """(label, address) of each way to open a lesson; addresses from the root of the site.

    Colab and Codespaces open a public repository on GitHub, so they are left out until
    `address.txt` has one.
    """
    home, github = address(root), "https://github.com/"
    links = []
    if home.startswith(github):
        name = home.removeprefix(github)
        colab = f"https://colab.research.google.com/github/{name}/blob/main/notebooks/{stem}.ipynb"
        links = [("Colab", colab), ("Codespaces", f"https://codespaces.new/{name}")]
    return [*links, ("Download", f"_static/notebooks/{stem}.ipynb")]


def try_it(stem: str, root: Path = ROOT) -> str:
    """The line of signs on a lesson's page, in Markdown."""
    links = (_link(label, link, "../") for label, link in signs(stem, root))
    install = f"[{say('install')}](../index.md#begin)"
    return f"{say('Open this lesson:')} {' · '.join(links)} · {install}"


def _link(label, link, up="", style=""):
    href = link if "://" in link else up + link
    what = " download" if label == "Download" else ""
    return f'<a{style} href="{href}"{what}>{say(label)}</a>'


def _motion():
    """The recorded check as a figure; each line is a span that the script reveals."""
    wrong = wrong_answers(EXERCISE)[WRONG]
    frames = [
        ("A kernel without a barrier:", wrong.source, _verdict(wrong.function)),
        ("With cuda.syncthreads():", None, _verdict(exercises.load(EXERCISE).reference)),
    ]
    lines = []
    for title, source, verdict in frames:
        lines.append(f'<span class="line title">{say(title)}</span>')
        if source:
            lines += [f'<span class="line code">{_safe(x)}</span>' for x in source.splitlines()]
        for text in verdict:
            mark = "bad" if "✗" in text else "good" if "✓" in text else "plain"
            lines.append(f'<span class="line {mark}">{_safe(text)}</span>')
    name, caption, replay = map(
        say, ("A recorded check", "A check, as it was recorded.", "Play again")
    )
    return (
        f'<figure class="motion"><pre tabindex="0" aria-label="{name}">'
        + "".join(lines)
        + f'</pre><figcaption>{caption} <button type="button" class="again">'
        f"{replay}</button></figcaption></figure>"
    )


def _verdict(function):
    """What `check` prints, up to the verdict itself."""
    from rwkv_lessons.lab.course.check import evaluate

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print(evaluate(EXERCISE, function))
    lines = text.getvalue().splitlines()
    return lines[: 1 + next(n for n, line in enumerate(lines) if line[:1] in ("✓", "✗"))]


def _safe(text):
    return html.escape(text, quote=False)


def card() -> bytes:
    """The picture of a shared link: a PNG of 1200 × 630, the ladder under the course's name."""
    from rwkv_lessons.lab.pictures import ladder
    from warplens.pictures import style

    style.use()
    figure = ladder.figure("wkv5")
    figure.set_size_inches(12, 6.3)
    figure.suptitle("RWKV Lessons: learn to write fast GPU kernels", fontsize=22, x=0.02, ha="left")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    return png.getvalue()
