"""Wrong answers to 02_profile_first."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

read_profile = wrong(
    idle_of_busy=(
        "Divides the idle time by the busy time instead of by the whole span.",
        edit("1 - busy / span", "(span - busy) / busy"),
    ),
    share_of_launches=(
        "Counts launches instead of adding up microseconds.",
        edit(
            'sum(kernel.us for kernel in kernels if "elementwise" in kernel.name)',
            'sum("elementwise" in kernel.name for kernel in kernels)',
        ),
        edit("elementwise / busy", "elementwise / len(kernels)"),
    ),
    span_from_zero=(
        "Counts the time before the first kernel as idle.",
        edit(" - kernels[0].start"),
    ),
)

finish = wrong(
    last_one_only=(
        "Considers only the last launch and forgets the kernels queued before it.",
        instead("return (len(durations) - 1) * launch + durations[-1]"),
    ),
    one_after_another=(
        "Makes the host wait for each kernel, but launches continue while a kernel runs.",
        instead("return (len(durations) - 1) * launch + sum(durations)"),
    ),
    whole_microseconds=(
        "Rounds every kernel down to whole microseconds.",
        edit("+ us", "+ int(us)"),
    ),
    without_a_loop=(
        "Returns the longer of all launches and all kernels, but an early gap is never made up.",
        instead("return max((len(durations) - 1) * launch + durations[-1], sum(durations))"),
    ),
)
