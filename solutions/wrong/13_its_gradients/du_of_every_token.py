"""du is not summed over the tokens."""


def bonus_gradients(r, k, v, u, do):
    v_do = (v * do).sum(-1, keepdim=True)
    dr, dk, du = u * k * v_do, u * r * v_do, (r * k * v_do)[:, -1]
    dv = (r * u * k).sum(-1, keepdim=True) * do
    return dr, dk, dv, du
