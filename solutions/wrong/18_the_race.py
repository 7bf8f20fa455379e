"""Wrong answers to 18_the_race."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, move, wrong

longest_kernel = wrong(
    longest_run=(
        "Takes the longest single run; three short runs of another kernel may be longer together.",
        instead(
            'kernels = [event for event in events if event["cat"] == "kernel"]\n'
            'longest = max(kernels, key=lambda event: event["dur"])\n'
            'return longest["name"], longest["dur"]'
        ),
    ),
    call_counts=(
        "Counts every event, so the call itself is the longest.",
        edit('if event["cat"] == "kernel":', "if event:"),
    ),
    launches_count=(
        "Adds up the host's launches.",
        edit('event["cat"] == "kernel"', 'event["cat"] == "launch"'),
    ),
    most_often=(
        "Counts runs, not microseconds.",
        edit('+= event["dur"]', "+= 1"),
    ),
    time_of_all=(
        "The name is right, but the time is that of all kernels.",
        edit(
            "return totals.most_common(1)[0]",
            "return totals.most_common(1)[0][0], sum(totals.values())",
        ),
    ),
)

idle_share = wrong(
    overlap_twice=(
        "Adds up durations, which is too much where two kernels overlap.",
        edit("busy += max(0, end - begin)", 'busy += event["dur"]'),
    ),
    from_first_kernel=(
        "The span begins with the first kernel and leaves out the host's time before it.",
        edit(
            'return 1 - busy / whole["dur"]',
            'first = min(event["ts"] for event in kernels)\nreturn 1 - busy / (end - first)',
        ),
    ),
    busy_share=(
        "Returns the share in which kernels run.",
        edit('1 - busy / whole["dur"]', 'busy / whole["dur"]'),
    ),
    unsorted=(
        "Takes kernels in the order of the file and loses time that a longer, earlier one covers.",
        edit('sorted(kernels, key=lambda event: event["ts"])', "kernels"),
    ),
    launches_are_busy=(
        "Counts the host's launches as work of the device.",
        edit('if event["cat"] == "kernel"', 'if event["cat"] != "call"'),
    ),
    right_if_it_starts_at_zero=(
        "Takes the call to end at its duration, which is right only if it starts at 0.",
        edit('1 - busy / whole["dur"]', '1 - busy / (whole["ts"] + whole["dur"])'),
    ),
)

break_even = wrong(
    rounds_down=(
        "One token too early: there it is still slower.",
        edit("math.ceil(", "math.floor("),
    ),
    none_or_less=(
        "Better in both means from the first token on, not from a negative number.",
        edit("max(1, math.ceil((fixed - other_fixed) / (other_each - each)))",
             "math.ceil((fixed - other_fixed) / (other_each - each))"),
    ),
    while_it_leads=(
        "The method that leads at the start is overtaken later and is slower from then on.",
        edit(
            "if each >= other_each:",
            "if fixed <= other_fixed:\n    return 1\nif each >= other_each:",
        ),
    ),
    equal_slopes=(
        "With the same cost for each token, the cheaper call stays ahead for ever.",
        edit("return 1 if each == other_each and fixed <= other_fixed else math.inf",
             "return math.inf"),
    ),
    by_token_alone=(
        "Compares only the cost of a token.",
        instead("return 1 if one[1] <= other[1] else math.inf"),
    ),
)  # fmt: skip

capture = wrong(
    renamed=(
        "Binds the name to the new tensor; the graph still reads the old memory.",
        edit("x.copy_(y)", "x = y"),
    ),
    right_for_the_first_prompt=(
        "Never copies new inputs, so every replay computes the first ones.",
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
        "Captures the first call of f, which would have to compile during the capture.",
        edit(
            """
            f(*static)
            graph = cuda.CUDAGraph()
            """,
            "graph = cuda.CUDAGraph()",
        ),
    ),
    results_of_the_warm_up=(
        "Returns the results of the call before the capture, where no replay writes.",
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
        "Replays the graph and then calls f as well.",
        edit("return results", "return f(*static)"),
    ),
    never_replayed=(
        "Copies the inputs and returns without launching anything.",
        edit("graph.replay()"),
    ),
    replay_first=(
        "Replays before copying the new inputs, so each answer belongs to the previous ones.",
        move("graph.replay()", before="for x, y"),
    ),
    waits_inside=(
        "Waits for the device during the capture, where nothing runs.",
        edit("results = f(*static)", "results = f(*static)\ncuda.synchronize()"),
    ),
    replayed_twice=(
        "Replays the graph twice, which takes twice as long.",
        edit("graph.replay()", "graph.replay()\ngraph.replay()"),
    ),
    twice=(
        "Captures two calls, so every replay does the work twice.",
        edit("results = f(*static)", "f(*static)\nresults = f(*static)"),
    ),
)
