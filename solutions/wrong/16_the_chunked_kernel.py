"""Wrong answers to 16_the_chunked_kernel."""

from rwkv_lessons.lab.course.wrong_answers import edit, move, wrong

forward = wrong(
    a_program_per_chunk=(
        "As many programs as there are chunks, and each processes all chunks of the first heads.",
        edit("kernel[(B * H,)]", "kernel[(T // 16 + 1,)]"),
    ),
    batch_forgotten=(
        "Forgets the batch rows.",
        edit("(B * H,)", "(H,)"),
    ),
    chunks_for_tokens=(
        "Uses T as the number of chunks.",
        edit('"T": T', '"T": T // 16'),
    ),
    o_in_float32=(
        "o is always float32, whatever the type of v.",
        edit("torch.empty_like(v)", "torch.empty_like(v, dtype=torch.float32)"),
    ),
    over_the_state=(
        "Writes the new state over the initial one.",
        edit(
            "o, s1 = torch.empty_like(v), torch.empty_like(s0)", "o, s1 = torch.empty_like(v), s0"
        ),
    ),
    rounded_to_tf32=(
        "Truncates float32 operands to TF32.",
        edit('"tf32x3"', '"tf32"'),
    ),
)

kernel = wrong(
    bonus_on_earlier_tokens=(
        "The bonus belongs to the current token; here every score gets it.",
        edit(
            "b_scores = tl.where(o_c[:, None] == o_c[None, :], b_itself, b_scores)",
            "b_scores += tl.where(o_c[:, None] >= o_c[None, :], b_itself, 0)",
        ),
    ),
    bonus_of_the_first_head=(
        "Every head uses the bonus of head 0.",
        edit("u + i_h * N + o_n", "u + o_n"),
    ),
    fades_before_it_is_read=(
        "Reads the state after the token's own decay: b_after instead of b_before.",
        edit("tl.exp(b_before)", "tl.exp(b_after)"),
    ),
    full_chunks_only=(
        "Leaves out the last chunk if it is not full.",
        edit("range(tl.cdiv(T, BT))", "range(T // BT)"),
    ),
    masked_decay_of_one=(
        "Tokens past the end decay the state: their log decay is -1.",
        edit("tl.load(w + o_x, m_t, 0)", "tl.load(w + o_x, m_t, -1)"),
    ),
    no_product_with_the_state=(
        "The right answer, but the part read from the state is summed without the tensor cores.",
        edit(
            "tl.dot(b_reads, b_s.to(b_v.dtype), input_precision=PRECISION)",
            "tl.sum(b_reads[:, :, None] * b_s[None, :, :], 1)",
        ),
    ),
    old_state_fades_too_little=(
        "The old state fades by all decays but the last token's.",
        edit("tl.exp(b_last)", "tl.exp(tl.max(b_last[None, :] - b_w, 0))"),
    ),
    reads_the_future=(
        "Scores above the diagonal stay, so tokens read later ones.",
        edit("b_scores = tl.where(o_c[:, None] > o_c[None, :], b_scores, 0)"),
    ),
    lines_moved=(
        "The state absorbs the chunk before the chunk's tokens have read it.",
        move(
            """
            # The state after the chunk.
            b_adds = (b_k * tl.exp(b_last[None, :] - b_after)).to(b_v.dtype)
            b_s *= tl.exp(b_last)[:, None]
            b_s += tl.dot(tl.trans(b_adds), b_v, input_precision=PRECISION)
            """,
            before="# What the tokens read of the state before the chunk.",
        ),
    ),
    tf32_by_default=(
        "The state's update does not set its precision, so float32 becomes TF32.",
        edit("tl.trans(b_adds), b_v, input_precision=PRECISION", "tl.trans(b_adds), b_v"),
    ),
    the_chunks_start=(
        "Counts the scores' decays from the chunk's first token, so strong decays overflow.",
        edit("b_middle = tl.sum(tl.where((o_c < BT // 2)[:, None], b_w, 0), 0)[None, :]"),
        edit("b_before - b_middle", "b_before"),
        edit("b_middle - b_after", "-b_after"),
    ),
)
