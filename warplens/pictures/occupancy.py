"""Warps on an SM against threads in a block: what fits, and what a grid has to offer."""

from ..architectures import ARCHITECTURES
from ..compiled.occupancy import MOST_THREADS, WARP, ceil_div, occupancy
from ..wording import many
from . import style


def plot_occupancy(kernel, mark=None, total_threads=None, arch=None, sms=None):
    """Draws warps an SM against threads a block: what fits, and what the grid has to offer.

    Args:
        kernel, arch, sms: as for `occupancy`; shared memory stays the same at every size.
        mark: threads of a block to mark.
        total_threads: of the whole grid, to draw how many warps the busiest SM gets of it.

    Returns:
        a `Picture`; its text is the occupancy at `mark`, or at the best size.
    """
    sizes = range(WARP, MOST_THREADS + 1, WARP)
    fits = {n: occupancy(kernel, n, arch=arch, sms=sms) for n in sizes}
    most = ARCHITECTURES[fits[WARP].arch].warps
    figure = style.figure(3.8, 8)
    axes = figure.subplots()
    warps = [fit.warps_per_sm for fit in fits.values()]
    axes.step(sizes, warps, where="mid", color=style.LOAD, label="fit on an SM")
    axes.fill_between(sizes, warps, step="mid", color=style.LOAD, alpha=0.12)
    if total_threads:
        busiest = {n: occupancy(kernel, n, 0, arch, ceil_div(total_threads, n), sms) for n in sizes}
        busiest = {n: fit.busiest_warps for n, fit in busiest.items() if fit.blocks_per_sm}
        label = f"on the busiest SM, of a grid of {total_threads:,} threads"
        look = {"color": style.STORE, "linestyle": "--", "label": label}
        axes.step(list(busiest), list(busiest.values()), where="mid", **look)
    if mark is not None:
        fit = occupancy(kernel, mark, arch=arch, sms=sms)
        label = f"{mark} threads: {many(fit.warps_per_sm, 'warp')}, set by "
        label += " and ".join(fit.limited_by)
        axes.plot(mark, fit.warps_per_sm, "o", color=style.LOAD, label=label, clip_on=False)
    if 0 in warps:
        axes.text(sizes[warps.index(0)], 1, "does not start", va="bottom")
    axes.set_xticks(range(0, MOST_THREADS + 1, 128))
    axes.set(xlim=(0, MOST_THREADS + WARP), ylim=(0, most + 1), yticks=range(0, most + 1, 8))
    axes.set(xlabel="threads in a block", ylabel="warps on an SM")
    title = f"{fits[WARP].registers} registers a thread, {fits[WARP].arch}"
    figure.legend(loc="outside upper left", title=title, alignment="left")
    best = max(fits, key=lambda n: fits[n].warps_per_sm) if mark is None else mark
    blocks = total_threads and ceil_div(total_threads, best)
    return style.Picture(figure, str(occupancy(kernel, best, 0, arch, blocks, sms)))
