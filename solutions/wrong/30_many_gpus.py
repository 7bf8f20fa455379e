"""Wrong answers to 30_many_gpus."""

from rwkv_lessons.lab.course.wrong_answers import edit, wrong

summary = wrong(
    decays_itself=(
        "What a token writes decays with its own w, too.",
        edit("(total[-1] - total)", "(total[-1] - total + w)"),
    ),
    decays_before=(
        "The decays before a token in place of those after it.",
        edit("(total[-1] - total)", "(total - w)"),
    ),
    divided=(
        "Decays from the start, divided: right until exp(-total) overflows.",
        edit(
            "(k * (total[-1] - total).exp()).T @ v",
            "A[:, None] * ((k * (-total).exp()).T @ v)",
        ),
    ),
    nothing_decays=(
        "What tokens write does not decay.",
        edit("(k * (total[-1] - total).exp()).T @ v", "k.T @ v"),
    ),
    log_of_the_product=(
        "A is the sum of the logs, and not exp of it.",
        edit("A = total[-1].exp()", "A = total[-1]"),
    ),
)

compose = wrong(
    order_turned=(
        "The first one's decays for what the second one wrote.",
        edit("A2[:, None] * B1 + B2", "A1[:, None] * B2 + B1"),
    ),
    undecayed=(
        "What the first one left does not pass the second one.",
        edit("A2[:, None] * B1 + B2", "B1 + B2"),
    ),
    both_decay=(
        "What the second one left decays, too.",
        edit("A2[:, None] * B1 + B2", "A2[:, None] * (B1 + B2)"),
    ),
    added=(
        "Decays are added, as their logs are.",
        edit("A2 * A1", "A2 + A1"),
    ),
    columns=(
        "The decay multiplies columns.",
        edit("A2[:, None] * B1", "(B1.T[: len(A2)].T * A2[: B1.shape[1]])"),
    ),
)

entries = wrong(
    right_for_two_ranks=(
        "What the rank before left, and nothing of those before it.",
        edit("A[p - 1][:, None] * E[p - 1] + B[p - 1]", "B[p - 1]"),
    ),
    own_decay=(
        "A rank's own decays in place of the one's before it.",
        edit("A[p - 1][:, None]", "A[p][:, None]"),
    ),
    state_after=(
        "The state after each rank in place of the one before it.",
        edit("for p in range(1, len(A)):", "for p in range(len(A)):"),
        edit(
            "A[p - 1][:, None] * E[p - 1] + B[p - 1]",
            "A[p][:, None] * (E[p - 1] if p else E[0]) + B[p]",
        ),
    ),
    sum_of_all=(
        "What all ranks before left, added without decays.",
        edit("A[p - 1][:, None] * E[p - 1] + B[p - 1]", "E[p - 1] + B[p - 1]"),
    ),
    two_ranks_only=(
        "The third rank is forgotten.",
        edit("range(1, len(A))", "range(1, min(2, len(A)))"),
    ),
)

reach = wrong(
    own_decay_too=(
        "A token reads through its own decay, too.",
        edit("w.cumsum(0) - w", "w.cumsum(0)"),
    ),
    every_key=(
        "It ends where the first key has forgotten.",
        edit(".any(1)", ".all(1)"),
    ),
    natural=(
        "Bits are taken for natural logarithms.",
        edit("-bits * math.log(2)", "-bits"),
    ),
    always_all=(
        "All tokens, whatever decays.",
        edit("int((before >= -bits * math.log(2)).any(1).sum())", "len(w)"),
    ),
    slowest_of_each_token=(
        "The slowest key of each token by itself, added up.",
        edit("w.cumsum(0) - w", "(x := w.max(1, keepdim=True).values).cumsum(0) - x"),
    ),
    keys_counted=(
        "Keys are counted, and not tokens.",
        edit(".any(1).sum()", ".sum()"),
    ),
)

correct = wrong(
    own_decay_too=(
        "A token reads through its own decay, too.",
        edit("w.cumsum(0) - w", "w.cumsum(0)"),
    ),
    undecayed=(
        "E does not decay.",
        edit("(r * before.exp()) @ E", "r @ E"),
    ),
    only_the_first=(
        "The first token alone.",
        edit(
            "return o + (r * before.exp()) @ E",
            "o = o.clone(); o[0] += r[0] @ E; return o",
        ),
    ),
    replaced=(
        "o is replaced, and what the tokens wrote themselves is lost.",
        edit("return o + ", "return "),
    ),
    last_decay=(
        "Each token reads through the decay of the one before it alone.",
        edit("w.cumsum(0) - w", "w.roll(1, 0) * (torch.arange(len(w)) > 0)[:, None]"),
    ),
)

exit_gradients = wrong(
    forward_again=(
        "It runs forward over the ranks.",
        edit("reversed(range(len(A) - 1))", "range(len(A) - 1)"),
    ),
    own_decay=(
        "A rank's own decays in place of the next one's.",
        edit("A[p + 1][:, None]", "A[p][:, None]"),
    ),
    neighbour_alone=(
        "What the next rank reads, and nothing of those after it.",
        edit("A[p + 1][:, None] * dS[p + 1] + dE[p + 1]", "dE[p + 1]"),
    ),
    own_outputs=(
        "A rank's own outputs read the state before it, not the one after it.",
        edit("+ dE[p + 1]", "+ dE[p]"),
    ),
    undecayed=(
        "The gradient passes a rank without its decays.",
        edit("A[p + 1][:, None] * dS[p + 1]", "dS[p + 1]"),
    ),
)
