"""What a lesson's `stretch` asks for, where it has the exercise's interface, passes its check."""

import textwrap

import pytest

from rwkv_lessons.lab.course import exercises
from rwkv_lessons.lab.course.check import evaluate

# Not 05's, which fetches ahead: numba then keeps the state in local memory, as the check says.
STRETCHES = {
    "00_start_here.double": """
    @cuda.jit
    def double(x, y):
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            y[i] = 2 * x[i]
    """,
    "00_start_here.block_sums": """
    @cuda.jit
    def block_sums(x, sums):
        s_x = cuda.shared.array(64, float32)
        i, n = cuda.grid(1), cuda.threadIdx.x
        s_x[n] = x[i] if i < x.shape[0] else float32(0)
        half = 32
        while half:
            cuda.syncthreads()
            if n < half:
                s_x[n] += s_x[n + half]
            half //= 2
        if n == 0:
            sums[cuda.blockIdx.x] = s_x[0]
    """,
    "00_start_here.histogram": """
    @cuda.jit
    def histogram(x, counts):
        s_counts = cuda.shared.array(16, int32)
        i, n = cuda.grid(1), cuda.threadIdx.x
        if n < 16:
            s_counts[n] = 0
        cuda.syncthreads()
        if i < x.shape[0]:
            cuda.atomic.add(s_counts, x[i], 1)
        cuda.syncthreads()
        if n < 16 and s_counts[n] > 0:
            cuda.atomic.add(counts, n, s_counts[n])
    """,
    "01_five_loops.five_loops": """
    def five_loops(r, k, v, decay, u):
        B, T, H, N = r.shape
        o = np.zeros_like(v)
        for b in range(B):
            for h in range(H):
                s = np.zeros((N, N), np.float32)
                for t in range(T):
                    bonus = np.float32(0)
                    for i in range(N):
                        bonus += r[b, t, h, i] * u[h, i] * k[b, t, h, i]
                    for j in range(N):
                        o[b, t, h, j] = bonus * v[b, t, h, j]
                        for i in range(N):
                            o[b, t, h, j] += r[b, t, h, i] * s[i, j]
                            s[i, j] = decay[h, i] * s[i, j] + k[b, t, h, i] * v[b, t, h, j]
        return o
    """,
    "04_drop_the_atomics.kernel": """
    @cuda.jit
    def kernel(r, k, v, decay, u, o):
        B, T, H, _ = r.shape
        thread = cuda.grid(1)
        b, h, j = thread // (H * N), thread // N % H, thread % N
        if b < B:
            s = cuda.local.array(N, float32)
            for i in range(N):
                s[i] = 0
            for t in range(T):
                v_j = v[b, t, h, j]
                o_j, bonus = float32(0), float32(0)
                for i in range(N):
                    r_i, k_i = r[b, t, h, i], k[b, t, h, i]
                    bonus += r_i * u[h, i] * k_i
                    o_j += r_i * s[i]
                    s[i] = decay[h, i] * s[i] + k_i * v_j
                o[b, t, h, j] = o_j + bonus * v_j
    """,
    "07_shared_memory.shared": """
    @cuda.jit(launch_bounds=(N, 1))
    def shared(r, k, v, decay, u, o):
        B, T, H, _ = r.shape
        b, h, j = cuda.blockIdx.x // H, cuda.blockIdx.x % H, cuda.threadIdx.x
        s_r = cuda.shared.array((2, N), float32)
        s_k = cuda.shared.array((2, N), float32)
        s_decay = cuda.shared.array(N, float32)
        s_u = cuda.shared.array(N, float32)
        s = cuda.local.array(N, float32)
        for i in range(N):
            s[i] = 0
        s_decay[j], s_u[j] = decay[h, j], u[h, j]
        for t in range(T):
            at = t & 1
            s_r[at, j], s_k[at, j] = r[b, t, h, j], k[b, t, h, j]
            cuda.syncthreads()
            v_j, o_j = v[b, t, h, j], float32(0)
            for i in range(N):
                kv = s_k[at, i] * v_j
                o_j += s_r[at, i] * (s_u[i] * kv + s[i])
                s[i] = s_decay[i] * s[i] + kv
            o[b, t, h, j] = o_j
    """,
    "08_decay_from_data.kernel": """
    @cuda.jit(launch_bounds=(N, 1))
    def kernel(r, k, v, w, u, s0, o, s1):
        B, T, H, _ = r.shape
        b, h, j = cuda.blockIdx.x // H, cuda.blockIdx.x % H, cuda.threadIdx.x
        s_r = cuda.shared.array((2, N), float32)
        s_k = cuda.shared.array((2, N), float32)
        s_decay = cuda.shared.array((2, N), float32)
        s_u = cuda.shared.array(N, float32)
        s = cuda.local.array(N, float32)
        s_u[j] = u[h, j]
        for i in range(N):
            s[i] = s0[b, h, i, j]
        next_r, next_k, next_w, next_v = r[b, 0, h, j], k[b, 0, h, j], w[b, 0, h, j], v[b, 0, h, j]
        for t in range(T):
            at, v_j = t % 2, next_v
            s_r[at, j], s_k[at, j], s_decay[at, j] = next_r, next_k, math.exp(next_w)
            cuda.syncthreads()
            if t + 1 < T:
                next_r, next_k = r[b, t + 1, h, j], k[b, t + 1, h, j]
                next_w, next_v = w[b, t + 1, h, j], v[b, t + 1, h, j]
            o_j = float32(0)
            for i in range(N):
                kv = s_k[at, i] * v_j
                o_j += s_r[at, i] * (s_u[i] * kv + s[i])
                s[i] = s_decay[at, i] * s[i] + kv
            o[b, t, h, j] = o_j
        for i in range(N):
            s1[b, h, i, j] = s[i]
    """,
    "10_time_x.naive": """
    @cuda.jit(launch_bounds=(TILE, 2))
    def naive(w, k, o):
        _, C, T = k.shape
        b, c, x = cuda.blockIdx.x // C, cuda.blockIdx.x % C, cuda.threadIdx.x
        for n in range(x, T, cuda.blockDim.x):
            t = T - 1 - n
            o_t = float32(0)
            for u in range(t + 1):
                o_t += w[c, T - 1 - t + u] * k[b, c, u]
            o[b, c, t] = o_t
    """,
    "10_time_x.shared": """
    @cuda.jit(launch_bounds=(TILE, 2))
    def shared(w, k, o):
        _, C, T = k.shape
        b, c = cuda.blockIdx.x // C, cuda.blockIdx.x % C
        x, threads = cuda.threadIdx.x, cuda.blockDim.x
        s_k = cuda.shared.array(TILE, float32)
        s_w = cuda.shared.array(WINDOW, float32)  # in turn: place i % WINDOW has weight i
        for t0 in range(0, T, TILE):
            o_t = float32(0)
            for u0 in range(0, t0 + 1, TILE):
                first = T - 1 - (t0 - u0) - TILE
                known = first if u0 == 0 else first + TILE  # what is there since the last chunk
                cuda.syncthreads()
                for i in range(max(0, known) + x, min(T, first + WINDOW), threads):
                    s_w[i % WINDOW] = w[c, i]
                for i in range(x, min(TILE, T - u0), threads):
                    s_k[i] = k[b, c, u0 + i]
                cuda.syncthreads()
                if t0 + x < T:
                    for u in range(min(TILE, t0 - u0 + x + 1)):
                        o_t += s_w[(first + TILE - x + u) % WINDOW] * s_k[u]
            if t0 + x < T:
                o[b, c, t0 + x] = o_t
    """,
    "10_time_x.balanced": """
    @cuda.jit(launch_bounds=(TILE // 8, 1))
    def balanced(w, k, o):
        B, C, T = k.shape
        b0, c = cuda.blockIdx.x // C * ROWS, cuda.blockIdx.x % C
        x, threads = cuda.threadIdx.x, cuda.blockDim.x
        s_k = cuda.shared.array((ROWS, TILE), float32, alignment=16)
        s_w = cuda.shared.array(WINDOW, float32, alignment=16)
        early = cuda.local.array((ROWS, 4), float32)
        late = cuda.local.array((ROWS, 4), float32)
        for t0 in range(0, T, TILE):
            last = (min(TILE, T - t0) + 3) // 4 - 1
            t_early, t_late = 4 * x, 4 * (last - x)
            for r in range(ROWS):
                for n in range(4):
                    early[r, n], late[r, n] = 0, 0
            for u0 in range(0, t0 + 1, TILE):
                cuda.syncthreads()
                for i in range(x, TILE, threads):
                    for r in range(ROWS):
                        there = b0 + r < B and u0 + i < T
                        s_k[r, i] = k[b0 + r, c, u0 + i] if there else float32(0)
                for i in range(x, WINDOW, threads):
                    at = T - 1 - (t0 - u0) + i - TILE
                    s_w[i] = w[c, at] if 0 <= at and at < T else float32(0)
                cuda.syncthreads()
                end_early = min(TILE, t0 - u0 + t_early + 4) if t_early < t_late else 0
                end_late = min(TILE, t0 - u0 + t_late + 4) if t_early <= t_late else 0
                for u in range(0, end_late, 4):
                    at, to = TILE - t_late + u - 4, TILE - t_early + u - 4
                    w8 = load4(s_w, (at,)) + load4(s_w, (at + 4,))
                    more, v8 = u < end_early, w8
                    if more:
                        v8 = load4(s_w, (to,)) + load4(s_w, (to + 4,))
                    for r in range(ROWS // 2):
                        k4 = load4(s_k, (r, u))
                        for m in range(4):
                            for n in range(4):
                                late[r, n] += w8[4 + m - n] * k4[m]
                        if more:
                            for m in range(4):
                                for n in range(4):
                                    early[r, n] += v8[4 + m - n] * k4[m]
                    for r in range(ROWS // 2, ROWS):
                        k4 = load4(s_k, (r, u))
                        for m in range(4):
                            for n in range(4):
                                late[r, n] += w8[4 + m - n] * k4[m]
                        if more:
                            for m in range(4):
                                for n in range(4):
                                    early[r, n] += v8[4 + m - n] * k4[m]
            for r in range(ROWS):
                for n in range(4):
                    if b0 + r < B and t_early < t_late and t0 + t_early + n < T:
                        o[b0 + r, c, t0 + t_early + n] = early[r, n]
                    if b0 + r < B and t_early <= t_late and t0 + t_late + n < T:
                        o[b0 + r, c, t0 + t_late + n] = late[r, n]
    """,
    "11_time_x_gradients.dw_shared": """
    @cuda.jit(launch_bounds=(TILE, 2))
    def dw_shared(k, do, dw):
        B, _, T = k.shape
        c, x, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
        s_k = cuda.shared.array((2, TILE), float32)
        s_do = cuda.shared.array((2, WINDOW), float32)
        for d0 in range(0, T, TILE):
            dw_d = float32(0)
            for b0 in range(0, B, 2):
                rows = min(2, B - b0)
                for u0 in range(0, T - d0, TILE):
                    cuda.syncthreads()
                    for row in range(rows):
                        for i in range(x, min(TILE, T - u0), threads):
                            s_k[row, i] = k[b0 + row, c, u0 + i]
                        for i in range(x, min(WINDOW, T - u0 - d0), threads):
                            s_do[row, i] = do[b0 + row, c, u0 + d0 + i]
                    cuda.syncthreads()
                    for row in range(rows):
                        for u in range(min(TILE, T - d0 - x - u0)):
                            dw_d += s_do[row, x + u] * s_k[row, u]
            if d0 + x < T:
                dw[c, T - 1 - (d0 + x)] = dw_d
    """,
    "13_fused_recurrent.kernel": """
    @triton.jit
    def kernel(
        r, k, v, w, u, s0, o_parts, s1, B, T,
        H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ):
        i_v, i_k, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        i_b, i_h = i_bh // H, i_bh % H
        o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
        m_k, m_v = o_k < K, o_v < V
        o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]
        m_s = m_k[:, None] & m_v[None, :]
        b_s = tl.load(s0 + o_s, m_s, 0)
        b_u = tl.load(u + i_h * K + o_k, m_k, 0)
        i_t = i_b * T * H + i_h
        b_r = tl.load(r + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_k = tl.load(k + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_w = tl.load(w + i_t * K + o_k, m_k, 0).to(tl.float32)
        b_v = tl.load(v + i_t * V + o_v, m_v, 0).to(tl.float32)
        for t in range(T):
            b_kv = b_k[:, None] * b_v[None, :]
            b_o = tl.sum(b_r[:, None] * (b_u[:, None] * b_kv + b_s), 0)
            b_s = tl.exp(b_w)[:, None] * b_s + b_kv
            tl.store(o_parts + (i_k * B * T * H + i_t) * V + o_v, b_o, m_v)
            i_t += H
            more = t + 1 < T
            b_r = tl.load(r + i_t * K + o_k, m_k & more, 0).to(tl.float32)
            b_k = tl.load(k + i_t * K + o_k, m_k & more, 0).to(tl.float32)
            b_w = tl.load(w + i_t * K + o_k, m_k & more, 0).to(tl.float32)
            b_v = tl.load(v + i_t * V + o_v, m_v & more, 0).to(tl.float32)
        tl.store(s1 + o_s, b_s, m_s)
    """,
    "22_delta_rule.kernel": """
    @triton.jit
    def kernel(
        r, w, k, v, a, b, s0, o, s1, T,
        H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    ):
        i_v, i_bh = tl.program_id(0), tl.program_id(1)
        o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
        m_k, m_v = o_k < K, o_v < V
        m_s = m_k[:, None] & m_v[None, :]
        o_s = i_bh * K * V + o_k[:, None] * V + o_v[None, :]
        b_s = tl.load(s0 + o_s, m_s, 0)
        for t in range(T):
            i_t = (i_bh // H * T + t) * H + i_bh % H
            b_r = tl.load(r + i_t * K + o_k, m_k, 0)
            b_w = tl.exp(tl.load(w + i_t * K + o_k, m_k, 0))
            b_k = tl.load(k + i_t * K + o_k, m_k, 0)
            b_a = tl.load(a + i_t * K + o_k, m_k, 0)
            b_b = tl.load(b + i_t * K + o_k, m_k, 0)
            b_v = tl.load(v + i_t * V + o_v, m_v, 0)
            b_z = tl.sum(b_a[:, None] * b_s, 0)
            b_o = tl.sum((b_r * b_w)[:, None] * b_s, 0)
            b_o += tl.sum(b_r * b_b, 0) * b_z + tl.sum(b_r * b_k, 0) * b_v
            b_s = b_w[:, None] * b_s + b_b[:, None] * b_z[None, :] + b_k[:, None] * b_v[None, :]
            tl.store(o + i_t * V + o_v, b_o, m_v)
        tl.store(s1 + o_s, b_s, m_s)
    """,
}


@pytest.mark.parametrize("id", STRETCHES)
def test_a_stretch_passes_its_own_check(id):
    if "triton" in STRETCHES[id]:
        pytest.importorskip("triton")
    kernel = exercises.defined(id, textwrap.dedent(STRETCHES[id]), f"<stretch of {id}>")
    result = evaluate(id, kernel)
    assert result.passed, str(result)


def test_a_name_of_ones_own_for_a_part_of_a_tile_follows_the_tile():
    text = exercises.solved("10_time_x.four").replace("TILE - 4 * x", "4 * GROUPS - 4 * x")
    text = "GROUPS = TILE // 4\n" + text.replace(
        "range(x, TILE, threads)", "range(x, 4 * GROUPS, threads)"
    )
    result = evaluate("10_time_x.four", exercises.defined("10_time_x.four", text, "<groups>"))
    assert result.passed, str(result)
