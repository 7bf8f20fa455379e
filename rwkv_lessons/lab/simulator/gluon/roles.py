"""Warps with different roles, `gl.warp_specialize`: each runs until it waits for another.

One role runs at a time, in a thread of its own; where its mbarrier is not over it hands on to the
next, from the last to the first or the other way round, so that each is as early as it can be in
one of the two orders. From the first to the last, one that arrives lets those that wait for it go
on at once, as a GPU does. When none can go on, the one that waits says so.
"""

import threading

from .faults import NeverEnds

OWN = ("products", "stores", "copies", "groups", "given_away", "warps")  # of each role


class Role:
    """A function on its own warps, and what is on its way in them."""

    def __init__(self, machine, name, function, args, warps):
        self.name, self.over, self.blocked = name, False, None
        self.own = {x: [] for x in OWN} | {"warps": warps}
        self.turn = threading.Semaphore(0)

        def run():
            self.turn.acquire()
            try:
                if not machine.roles.stopped:
                    function(*args)
            except BaseException as fault:  # it is raised again where the roles began
                machine.roles.fault = machine.roles.fault or fault
                machine.roles.stopped = True
            self.over = True
            machine.roles.hand_on()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()


class Roles:
    """The roles of a program, while they run."""

    def __init__(self, machine, functions_and_args, warps, backwards):
        self.machine, self.stopped, self.running, self.fault = machine, False, None, None
        self.at_once = not backwards
        self.end = threading.Semaphore(0)
        machine.roles = self
        self.roles = [
            Role(machine, function.__name__, function, args, n)
            for (function, args), n in zip(functions_and_args, warps, strict=True)
        ]
        if backwards:
            self.roles.reverse()

    def run(self):
        """Runs all to their ends, or raises the first fault."""
        before = {x: getattr(self.machine, x) for x in OWN}
        self.hand_on()
        self.end.acquire()
        for name in OWN[:-1]:
            before[name] = before[name] + [x for role in self.roles for x in role.own[name]]
        vars(self.machine).update(before)
        self.machine.roles = self.machine.log.role = None
        if self.fault:
            raise self.fault

    def hand_on(self):
        """Lets another role run: the first, after this one, whose barrier is over."""
        if self.running:
            self.running.own = {x: getattr(self.machine, x) for x in OWN}
        at = self.roles.index(self.running) + 1 if self.running else 0
        for role in self.roles[at:] + self.roles[:at]:
            free = self.stopped or role.blocked is None or not role.blocked[0].runs(role.blocked[1])
            if not role.over and free:
                return self.resume(role)
        waiting = [role for role in self.roles if not role.over]
        if waiting:
            self.stopped = True
            return self.resume(waiting[0])
        self.running = None
        self.end.release()

    def resume(self, role):
        self.running = self.machine.log.role = role
        vars(self.machine).update(role.own)
        role.turn.release()

    def arrived(self):
        """Lets a role go on that waited for the one that runs."""
        role = self.running
        if self.at_once and not self.stopped:
            self.hand_on()
            role.turn.acquire()

    def wait(self, barrier, phase):
        """Hands on until the phase of the barrier is over."""
        if not barrier.runs(phase):
            return
        role = self.running
        role.blocked = barrier, phase
        self.hand_on()
        role.turn.acquire()
        role.blocked = None
        if self.stopped:
            raise NeverEnds(
                f"{barrier.name}: {role.name} waits for phase {phase}, and never goes on",
                None,
                "no other role of the program arrives there any more",
                "count who arrives, and which phase is waited for",
            )
