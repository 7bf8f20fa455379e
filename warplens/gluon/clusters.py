"""Clusters of programs, which Gluon writes as one program (`num_ctas`), and so runs here as one.

The programs of a cluster are in step here: each has its part of a tile, or the same tile, and what
happens in one happens in all. So a copy with `multicast=True` is a copy, of a tile that all have.
Not seen is what only programs out of step can do: one that is done with a tile, and loads the next
over what the other still reads, if it waits for an mbarrier of its own alone.
"""

from .faults import GluonFault, LeftInFlight, refuse

IN_ROLES = "every role calls cluster.arrive and cluster.wait as often as the others"


def parts(layout):
    """In how many parts the programs of a cluster have a tile; 1 if each has all of it."""
    bases = getattr(layout, "cga_layout", None) or ()
    return 2 ** sum(any(basis) for basis in bases)


def refuse_multicast(described):
    """Refuses a copy to all programs of a tile of which each has another part."""
    bases = getattr(described.layout, "cga_layout", None) or ()
    refuse(not bases, "multicast=True, and the descriptor's layout has no cga_layout: no cluster")
    refuse(
        parts(described.layout) > 1,
        f"multicast=True, and cga_layout={[list(x) for x in bases]} gives each program another "
        "part of the tile: [[0, 0]] gives all of it to both",
    )


class ClusterBarrier:
    """`cluster.arrive` and `cluster.wait`: over when every warp of the cluster has arrived."""

    name = "the barrier of the cluster"

    def __init__(self, machine):
        self.machine, self.arrived, self.waited = machine, {}, {}

    def role(self):
        roles = self.machine.roles
        return roles.running if roles else None

    def arrive(self, relaxed=False):
        role = self.role()
        if self.arrived.get(role, 0) > self.waited.get(role, 0):
            raise GluonFault(
                "cluster.arrive a second time, without cluster.wait",
                None, "the barrier of a cluster counts a warp once", "cluster.wait() between them",
            )  # fmt: skip
        self.arrived[role] = self.arrived.get(role, 0) + 1
        self.machine.flight_log.step("barrier", "all programs of the cluster")
        if self.machine.roles:
            self.machine.roles.arrived()

    def wait(self):
        role = self.role()
        phase = self.waited.get(role, 0)
        if self.arrived.get(role, 0) == phase:
            raise GluonFault(
                "cluster.wait without cluster.arrive before it", None, None, "cluster.arrive()"
            )
        if self.machine.roles:
            self.machine.roles.wait(self, phase)
        self.waited[role] = phase + 1

    def runs(self, phase):
        """Whether a wait for this phase would wait: one role has not arrived so often."""
        return any(self.arrived.get(role, 0) <= phase for role in self.machine.roles.roles)

    def refuse_outside(self):
        """Roles begin: Triton 3.7 lets the warps of the first one alone take part before them."""
        if self.arrived:
            raise GluonFault(
                "a barrier of the cluster outside of warp_specialize",
                None,
                "in Triton 3.7 the warps of the other roles do not take part: a GPU hangs here",
                IN_ROLES,
            )

    def refuse_left(self):
        """A program ends."""
        if self.arrived != self.waited:
            raise LeftInFlight(
                "a program ends between cluster.arrive and cluster.wait", None, None, IN_ROLES
            )
