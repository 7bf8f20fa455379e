"""Wrong answers to 30_many_gpus."""

from rwkv_lessons.lab.course.wrong_answers import edit, instead, wrong

summary = wrong(
    decays_itself=(
        "What a token writes decays by its own w, too.",
        edit("(total[-1] - total)", "(total[-1] - total + w)"),
    ),
    decays_before=(
        "Uses the decays before a token instead of those after it.",
        edit("(total[-1] - total)", "(total - w)"),
    ),
    divided=(
        "Divides decays from the start: right until exp(-total) overflows.",
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
        "A is the sum of the logs instead of its exp.",
        edit("A = total[-1].exp()", "A = total[-1]"),
    ),
)

compose = wrong(
    order_turned=(
        "Applies the first map's decays to what the second wrote.",
        edit("A2[:, None] * B1 + B2", "A1[:, None] * B2 + B1"),
    ),
    undecayed=(
        "What the first map left does not go through the second.",
        edit("A2[:, None] * B1 + B2", "B1 + B2"),
    ),
    both_decay=(
        "What the second map left decays, too.",
        edit("A2[:, None] * B1 + B2", "A2[:, None] * (B1 + B2)"),
    ),
    added=(
        "Adds the decays instead of multiplying them.",
        edit("A2 * A1", "A2 + A1"),
    ),
    columns=(
        "The decay multiplies columns.",
        edit("A2[:, None] * B1", "(B1.T[: len(A2)].T * A2[: B1.shape[1]])"),
    ),
)

gather = wrong(
    receives_first=(
        "Every rank receives before it sends: a hang.",
        edit("send(found[(rank - step) % ranks], (rank + 1) % ranks)", "left = (rank - 1) % ranks"),
        edit(
            "found[(rank - step - 1) % ranks] = receive((rank - 1) % ranks)",
            """
            found[(rank - step - 1) % ranks] = receive(left)
            send(found[(rank - step) % ranks], (rank + 1) % ranks)
            """,
        ),
    ),
    own_again=(
        "Sends its own tensor in every step.",
        edit("send(found[(rank - step) % ranks]", "send(found[rank]"),
    ),
    wrong_place=(
        "Stores what arrives as if it had come from the other direction.",
        edit("found[(rank - step - 1) % ranks]", "found[(rank + step + 1) % ranks]"),
        edit("send(found[(rank - step) % ranks]", "send(found[(rank + step) % ranks]"),
    ),
    one_step_short=(
        "Stops one step too early.",
        edit("range(ranks - 1)", "range(ranks - 2)"),
    ),
    one_step_long=(
        "Goes around once more, to its own tensor.",
        edit("range(ranks - 1)", "range(ranks)"),
    ),
)

entries = wrong(
    right_for_two_ranks=(
        "Uses only what the rank before left from zero, and nothing of earlier ranks.",
        edit("A[p - 1][:, None] * E[p - 1] + B[p - 1]", "B[p - 1]"),
    ),
    own_decay=(
        "Uses a rank's own decays instead of those of the rank before.",
        edit("A[p - 1][:, None]", "A[p][:, None]"),
    ),
    state_after=(
        "Returns the state after each rank instead of the one before it.",
        edit("for p in range(1, len(A)):", "for p in range(len(A)):"),
        edit(
            "A[p - 1][:, None] * E[p - 1] + B[p - 1]",
            "A[p][:, None] * (E[p - 1] if p else E[0]) + B[p]",
        ),
    ),
    sum_of_all=(
        "Adds up what all earlier ranks left, without decays.",
        edit("A[p - 1][:, None] * E[p - 1] + B[p - 1]", "E[p - 1] + B[p - 1]"),
    ),
    divided=(
        "Divides by the product of all decays so far: right until it is 0.",
        instead("""
            C = A.cumprod(0)
            E = (B / C[:, :, None]).cumsum(0) * C[:, :, None]
            return torch.cat([torch.zeros_like(B[:1]), E[:-1]])
        """),
    ),
    two_ranks_only=(
        "Leaves out the third rank.",
        edit("range(1, len(A))", "range(1, min(2, len(A)))"),
    ),
)

reach = wrong(
    own_decay_too=(
        "A token reads through its own decay, too.",
        edit("w.cumsum(0) - w", "w.cumsum(0)"),
    ),
    every_key=(
        "Stops when the first key has forgotten.",
        edit(".any(1)", ".all(1)"),
    ),
    natural=(
        "Treats bits as natural logarithms.",
        edit("-bits * math.log(2)", "-bits"),
    ),
    always_all=(
        "Counts all tokens, whatever the decays.",
        edit("int((before >= -bits * math.log(2)).any(1).sum())", "len(w)"),
    ),
    slowest_of_each_token=(
        "Adds up the slowest key of each token.",
        edit("w.cumsum(0) - w", "(x := w.max(1, keepdim=True).values).cumsum(0) - x"),
    ),
    keys_counted=(
        "Counts keys instead of tokens.",
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
        "Corrects only the first token.",
        edit(
            "return o + (r * before.exp()) @ E",
            "o = o.clone(); o[0] += r[0] @ E; return o",
        ),
    ),
    replaced=(
        "Replaces o, so what the tokens wrote themselves is lost.",
        edit("return o + ", "return "),
    ),
    divided=(
        "Divides by a token's own decay: right until exp(w) is 0.",
        edit("w.cumsum(0) - w", "w.cumsum(0)"),
        edit("before.exp()", "before.exp() / w.exp()"),
    ),
    last_decay=(
        "Each token reads through only one decay, that of the token before it.",
        edit("w.cumsum(0) - w", "w.roll(1, 0) * (torch.arange(len(w)) > 0)[:, None]"),
    ),
)

exit_gradients = wrong(
    forward_again=(
        "Runs forward over the ranks.",
        edit("reversed(range(len(A) - 1))", "range(len(A) - 1)"),
    ),
    own_decay=(
        "Uses a rank's own decays instead of the next rank's.",
        edit("A[p + 1][:, None]", "A[p][:, None]"),
    ),
    neighbour_alone=(
        "Uses only what the next rank reads, and nothing of later ranks.",
        edit("A[p + 1][:, None] * dS[p + 1] + dE[p + 1]", "dE[p + 1]"),
    ),
    own_outputs=(
        "Adds a rank's own outputs, which read the state before it, not after it.",
        edit("+ dE[p + 1]", "+ dE[p]"),
    ),
    undecayed=(
        "The gradient passes a rank without its decays.",
        edit("A[p + 1][:, None] * dS[p + 1]", "dS[p + 1]"),
    ),
)
