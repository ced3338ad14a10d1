"""A node's secure sums, kept only in memory, so that their secrets do not outlive a restart."""

from threading import Lock

from atoll.aggregation.fixed_point import FixedPoint
from atoll.secure.participant import Identity, Participant
from atoll.secure.roster import Instance, NotSummed

_MOST = 1000  # in progress at a time; the oldest are dropped, and then declined


class OpenSums:
    """A node's side of all its secure sums; thread-safe."""

    def __init__(self, identity: Identity, fixed: FixedPoint) -> None:
        self.identity = identity
        self.fixed = fixed
        self._open: dict[str, Participant] = {}
        self._lock = Lock()

    def begin(self, instance: Instance) -> Participant:
        """Return the node's side of a new sum."""
        with self._lock:
            if instance.token in self._open:
                raise NotSummed("replayed", "keys for a sum for which this node has made them already")
            while len(self._open) >= _MOST:
                del self._open[next(iter(self._open))]
            made = Participant(self.identity, instance, self.fixed.threshold, self.fixed.least_nodes)
            self._open[instance.token] = made
            return made

    def find(self, instance: Instance) -> Participant:
        """Return the node's side of a sum in progress."""
        with self._lock:
            found = self._open.get(instance.token)
        if found is None or found.instance != instance:
            raise NotSummed("replayed", "a sum that this node knows nothing of, or no longer")
        return found
