"""Warps with different roles, `gl.warp_specialize`: each runs until it waits for another.

One role runs at a time, a greenlet of its own; where its mbarrier is not over it hands on to the
next, from the last to the first or the other way round, so that each is as early as it can be in
one of the two orders. From the first to the last, one that arrives lets those that wait for it go
on at once, as a GPU does. When none can go on, the one that waits says so.
"""

import greenlet

from .faults import NeverEnds

OWN = ("products", "stores", "copies", "groups", "given_away", "warps")  # of each role


class Role:
    """A function on its own warps, and what is on its way in them."""

    def __init__(self, name, function, args, warps):
        self.name, self.blocked = name, None
        self.own = {x: [] for x in OWN} | {"warps": warps}
        self.body = greenlet.greenlet(
            lambda: function(*args)
        )  # a fault of it comes where run waits


class Roles:
    """The roles of a program, while they run."""

    def __init__(self, machine, functions_and_args, warps, backwards):
        self.machine, self.running = machine, None
        self.at_once = not backwards
        machine.roles = self
        self.roles = [
            Role(function.__name__, function, args, n)
            for (function, args), n in zip(functions_and_args, warps, strict=True)
        ]
        if backwards:
            self.roles.reverse()

    def run(self):
        """Runs all to their ends, or raises the first fault."""
        machine = self.machine
        before = {x: getattr(machine, x) for x in OWN}
        try:
            while role := self.next():
                self.running = machine.flight_log.role = role
                vars(machine).update(role.own)
                role.body.switch()
                role.own = {x: getattr(machine, x) for x in OWN}
        finally:
            machine.roles = machine.flight_log.role = None
        for name in OWN[:-1]:
            before[name] = before[name] + [x for role in self.roles for x in role.own[name]]
        vars(machine).update(before)

    def next(self):
        """The role that runs next: the first, after this one, whose barrier is over."""
        at = self.roles.index(self.running) + 1 if self.running else 0
        going = [role for role in self.roles[at:] + self.roles[:at] if not role.body.dead]
        free = (x for x in going if x.blocked is None or not x.blocked[0].runs(x.blocked[1]))
        return next(free, going[0] if going else None)  # where none is, the first will say so

    def arrived(self):
        """Lets a role go on that waited for the one that runs."""
        if self.at_once:
            greenlet.getcurrent().parent.switch()

    def wait(self, barrier, phase):
        """Hands on until the phase of the barrier is over."""
        if not barrier.runs(phase):
            return
        role = self.running
        role.blocked = barrier, phase
        greenlet.getcurrent().parent.switch()
        role.blocked = None
        if barrier.runs(phase):
            raise NeverEnds(
                f"{barrier.name}: {role.name} waits for phase {phase}, and never goes on",
                None,
                "no other role of the program arrives there any more",
                "count who arrives, and which phase is waited for",
            )
