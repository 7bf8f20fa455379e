"""Wrong answers to 18_the_race."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong

longest_kernel = wrong(
    longest_run=(
        "The longest single run: three short ones of a kernel may be more together.",
        instead(
            'kernels = [event for event in events if event["cat"] == "kernel"]\n'
            'longest = max(kernels, key=lambda event: event["dur"])\n'
            'return longest["name"], longest["dur"]'
        ),
    ),
    call_counts=(
        "Every event counts: the call itself is the longest.",
        edit('if event["cat"] == "kernel":', "if event:"),
    ),
    launches_count=(
        "Adds up what the host did.",
        edit('event["cat"] == "kernel"', 'event["cat"] == "launch"'),
    ),
    most_often=(
        "Counts runs, not microseconds.",
        edit('+= event["dur"]', "+= 1"),
    ),
    time_of_all=(
        "The name is right; the time is that of all kernels.",
        edit(
            "return totals.most_common(1)[0]",
            "return totals.most_common(1)[0][0], sum(totals.values())",
        ),
    ),
)

idle_share = wrong(
    overlap_twice=(
        "Adds up durations: where two kernels run at once that is too much.",
        edit("busy += max(0, end - begin)", 'busy += event["dur"]'),
    ),
    from_first_kernel=(
        "The span begins with the first kernel: what the host needs before it is left out.",
        edit(
            'return 1 - busy / whole["dur"]',
            'first = min(event["ts"] for event in kernels)\nreturn 1 - busy / (end - first)',
        ),
    ),
    busy_share=(
        "The share in which kernels run.",
        edit('1 - busy / whole["dur"]', 'busy / whole["dur"]'),
    ),
    unsorted=(
        "Takes kernels as they stand in the file: what an earlier one covers is lost.",
        edit('sorted(kernels, key=lambda event: event["ts"])', "kernels"),
    ),
    launches_are_busy=(
        "Counts the host's launches as work of the device.",
        edit('if event["cat"] == "kernel"', 'if event["cat"] != "call"'),
    ),
    right_if_it_starts_at_zero=(
        "The call is taken to end at its length: right if it starts at 0.",
        edit('1 - busy / whole["dur"]', '1 - busy / (whole["ts"] + whole["dur"])'),
    ),
)

break_even = wrong(
    rounds_down=(
        "One token too early: there it is still slower.",
        edit("math.ceil(", "math.floor("),
    ),
    none_or_less=(
        "Better in both is better from the first token on, not from a negative number.",
        edit("max(1, math.ceil((fixed - other_fixed) / (other_each - each)))",
             "math.ceil((fixed - other_fixed) / (other_each - each))"),
    ),
    while_it_leads=(
        "Who leads at the start is passed later: from then on it is not the faster one.",
        edit(
            "if each >= other_each:",
            "if fixed <= other_fixed:\n    return 1\nif each >= other_each:",
        ),
    ),
    equal_slopes=(
        "With the same time for a token the cheaper call stays ahead for ever.",
        edit("return 1 if each == other_each and fixed <= other_fixed else math.inf",
             "return math.inf"),
    ),
    by_token_alone=(
        "Looks at the time of a token only.",
        instead("return 1 if one[1] <= other[1] else math.inf"),
    ),
)  # fmt: skip

capture = wrong(
    renamed=(
        "The name is bound to the new tensor: the graph goes on to read the old memory.",
        edit("x.copy_(y)", "x = y"),
    ),
    right_for_the_first_prompt=(
        "New inputs are never copied: every replay computes the first ones.",
        edit(
            """
            for x, y in zip(static, new, strict=False):
                x.copy_(y)
            """,
            "",
        ),
    ),
    callers_memory=(
        "Captures with the caller's own tensors, and writes every new input there.",
        edit("[x.clone() for x in inputs]", "list(inputs)"),
    ),
    cold=(
        "The first call of f is the captured one: it would compile there.",
        edit(
            """
            f(*static)
            graph = cuda.CUDAGraph()
            """,
            "graph = cuda.CUDAGraph()",
        ),
    ),
    results_of_the_warm_up=(
        "Returns what the call before the capture made: no replay writes there.",
        edit(
            """
            f(*static)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                results = f(*static)
            """,
            """
            results = f(*static)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph):
                f(*static)
            """,
        ),
    ),
    calls_again=(
        "Replays, and then calls f all the same.",
        edit("return results", "return f(*static)"),
    ),
    never_replayed=(
        "Copies and returns: nothing was launched.",
        edit("graph.replay()"),
    ),
    replay_first=(
        "Replays before the new inputs are there: each answer is the one before.",
        move("graph.replay()", before="for x, y"),
    ),
    waits_inside=(
        "Waits for the device in the capture, where nothing runs.",
        edit("results = f(*static)", "results = f(*static)\ncuda.synchronize()"),
    ),
    twice=(
        "Two calls in the capture: every replay does the work twice.",
        edit("results = f(*static)", "f(*static)\nresults = f(*static)"),
    ),
)
