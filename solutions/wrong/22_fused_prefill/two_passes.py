"""The right answer, from all scores at once."""


def online(s, latent, BN):
    return s.softmax(1) @ latent
