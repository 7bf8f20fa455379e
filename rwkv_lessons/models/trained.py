"""The two small models that come with the lessons, trained: their weights in records/data.

`python -m rwkv_lessons.models.reverse --record` and `python -m rwkv_lessons.models.text --record`
train them and write the files.
"""

from pathlib import Path

import torch

from rwkv_lessons.models.rwkv6 import Model

FOLDER = Path(__file__).parents[1] / "records" / "data"


def keep(model, name, **about):
    """Writes `<name>.pt`: the weights in float16, half the bytes, and what else a user needs."""
    weights = {key: x.detach().half() for key, x in model.state_dict().items()}
    torch.save({"weights": weights, **about}, FOLDER / f"{name}.pt")


def load(name, sizes):
    """A `Model` with the weights of `<name>.pt`, and what else was written.

    Args:
        sizes: what else was written → the model's `Sizes`.

    Raises:
        FileNotFoundError: the file is only in a clone of the repository, not in the wheel.
    """
    saved = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    weights = {key: x.float() for key, x in saved.pop("weights").items()}
    model = Model(sizes(saved))
    model.load_state_dict(weights)
    return model.eval(), saved
