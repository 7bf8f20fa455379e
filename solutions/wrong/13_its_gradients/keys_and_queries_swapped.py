"""dr and dk have changed places."""


def bonus_gradients(r, k, v, u, do):
    v_do = (v * do).sum(-1, keepdim=True)
    dr, dk, du = u * r * v_do, u * k * v_do, (r * k * v_do).sum(1)
    dv = (r * u * k).sum(-1, keepdim=True) * do
    return dr, dk, dv, du
