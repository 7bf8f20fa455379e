"""Wrong answers to 02_profile_first."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

read_profile = wrong(
    idle_of_busy=(
        "Sets the idle time against the busy time: a share is of the whole span.",
        edit("1 - busy / span", "(span - busy) / busy"),
    ),
    share_of_launches=(
        "Counts launches where it should add up microseconds.",
        edit(
            'sum(kernel.us for kernel in kernels if "elementwise" in kernel.name)',
            'sum("elementwise" in kernel.name for kernel in kernels)',
        ),
        edit("elementwise / busy", "elementwise / len(kernels)"),
    ),
    span_from_zero=(
        "Takes the time before the first kernel for idle time.",
        edit(" - kernels[0].start"),
    ),
)

finish = wrong(
    last_one_only=(
        "Looks at the last launch only: the kernels that queue up before it are forgotten.",
        instead("return (len(durations) - 1) * launch + durations[-1]"),
    ),
    one_after_another=(
        "Lets the host wait for each kernel: launches go on while a kernel runs.",
        instead("return (len(durations) - 1) * launch + sum(durations)"),
    ),
    whole_microseconds=(
        "Takes kernels for whole microseconds long.",
        edit("+ us", "+ int(us)"),
    ),
    without_a_loop=(
        "Takes the longer of all launches and all kernels: a gap early on is never caught up.",
        instead("return max((len(durations) - 1) * launch + durations[-1], sum(durations))"),
    ),
)
