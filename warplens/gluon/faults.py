"""What goes wrong with work in flight, each with its line, its cause, and what to do."""

from ..faults import KernelFault


class GluonFault(KernelFault):
    """What a GPU would punish, some day: it may well be right today.

    Attributes:
        because: what the cause is, with its line. do: what to write instead. Either may be None.
    """

    symptom = "in flight"

    def __init__(self, what, place=None, because=None, do=None):
        super().__init__(what, place)
        self.because, self.do = because, do
        more = [f"because {because}"] if because else []
        self.args = ("\n  ".join([*self.args, *more, *([f"do: {do}"] if do else [])]),)

    def placed(self, place):
        """The same fault, with the line where it was noticed."""
        fault = type(self)(self.what, place, self.because, self.do)
        fault.symptom = self.symptom
        return fault


class ReadBeforeWait(GluonFault):
    """A tile or a product is read while it is on its way."""

    symptom = "wait"


class NothingThere(GluonFault):
    """A tile is read into which nothing was ever written."""

    symptom = "wait"


class OverwrittenInFlight(GluonFault):
    """A tile is written while a copy or a product still reads or writes it."""

    symptom = "overwritten"


class MissingFence(GluonFault):
    """A copy or a product may not see what threads wrote into shared memory."""

    symptom = "fence"


class NeverEnds(GluonFault):
    """A wait for a phase that never comes: on a GPU the kernel hangs."""

    symptom = "hang"


class LeftInFlight(GluonFault):
    """A program ends, and something of it is still on its way."""

    symptom = "left"


def refuse(wrong, message, symptom=None):
    """Raises a `GluonFault` that says `message`, if something is `wrong`, whatever is in flight.

    `symptom` is its hint's; without one, the message has to do.
    """
    if wrong:
        fault = GluonFault(message)
        fault.symptom = symptom or "misuse"
        raise fault
