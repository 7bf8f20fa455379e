def backward(ctx, *a):
    raise NotImplementedError


def keep_inputs(ctx, inputs, output):
    pass
