"""A trace as text: short, and the same in every session."""

from ..wording import many

SOURCE_WIDTH = 32  # characters of the source line that a table shows


def table(trace):
    """All sections of a trace that have something to say."""
    parts = [_headline(trace), *_troubles(trace)]
    rows = trace.rows
    parts += _global([r for r in rows if r.space == "global" and r.op != "atomic"], trace)
    parts += _atomic([r for r in rows if r.op == "atomic"])
    parts += _shared([r for r in rows if r.space == "shared" and r.op != "atomic"])
    parts += _local([r for r in rows if r.space == "local"])
    return "\n".join(parts)


def _headline(trace):
    blocks, threads = len(trace.blocks), trace.threads_per_block
    text = f"{trace.kernel}: {many(blocks, 'block')} of {many(threads, 'thread')}"
    text += f", {many(trace.warps, 'warp')}"
    if blocks < trace.all_blocks:
        text += (
            f"\nThese are {blocks} of {trace.all_blocks:,} blocks; every count is of them alone."
        )
    return text


def _troubles(trace):
    """Faults and races first: the counts of a wrong kernel mean little."""
    lines = [f"FAULT {type(fault).__name__}: {fault}" for fault in trace.faults]
    if any(type(fault).__name__ != "UninitialisedRead" for fault in trace.faults):
        lines.append("The run stopped there: the counts are of what came before.")
    lines += [str(race).replace("race on", "RACE on", 1) for race in trace.races]
    return lines


def _global(rows, trace):
    if not rows:
        return []
    body = [
        [r.requests, r.sectors, _ratio(r.sectors, r.requests), r.bytes, 32 * r.least_sectors]
        for r in rows
    ]
    if len(rows) > 1:
        for op in sorted({r.op for r in rows}):
            mine = [r for r in rows if r.op == op]
            requests, sectors = sum(r.requests for r in mine), sum(r.sectors for r in mine)
            least = trace.least_bytes("global", op)
            bytes_requested = sum(r.bytes for r in mine)
            body.append([requests, sectors, _ratio(sectors, requests), bytes_requested, least, op])
    head = ["requests", "sectors", "per request", "bytes requested", "at least"]
    return _section("global memory", head, rows, body)


def _atomic(rows):
    head = ["requests", "operations", "addresses", "on one address", "lanes together"]
    body = [[r.requests, r.accesses, r.addresses, r.most_on_one, r.together] for r in rows]
    return _section("atomics", head, rows, body)


def _shared(rows):
    head = ["requests", "wavefronts", "per request", "conflicts"]
    body = [[r.requests, r.wavefronts, _ratio(r.wavefronts, r.requests), r.conflicts] for r in rows]
    return _section("shared memory", head, rows, body)


def _local(rows):
    head = ["requests", "sectors, if it is not kept in registers"]
    return _section("local arrays", head, rows, [[r.requests, r.sectors] for r in rows])


def _section(title, head, rows, body):
    """A block of the table; an entry of `body` beyond `rows` is a total, its last item the op."""
    if not rows:
        return []
    lines = [["line", "array", "", *head]]
    for row, counts in zip(rows, body, strict=False):
        name = row.array if row.width < 16 else f"{row.array} ×{row.width} B"
        lines.append([str(row.line), name, row.op, *map(_number, counts)])
    for *counts, op in body[len(rows) :]:
        lines.append(["", "all", op, *map(_number, counts)])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    source = ["", *(_short(row.place.text) for row in rows), *[""] * len(body[len(rows) :])]
    text = [f"{title}"]
    for line, code in zip(lines, source, strict=True):
        cells = [
            cell.ljust(width) if n in (1, 2) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join([*cells, code]).rstrip())
    return ["", *text]


def _short(source):
    return source if len(source) <= SOURCE_WIDTH else source[: SOURCE_WIDTH - 1] + "…"


def _number(value):
    return value if isinstance(value, str) else f"{value:,}"


def _ratio(a, b):
    return f"{a / b:.2f}" if b else "–"
