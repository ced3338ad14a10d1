"""The groups given by the data itself: hospitals of a region, airports, rotated images."""

from atoll.clustering.checked_arguments import checked_rule
from atoll.clustering.clustering import Clustering
from atoll.data.population import Population
from atoll.support.errors import InputError


@checked_rule
def planted(population: Population, clusters: int) -> Clustering:
    """Group clients by their planted group (`data.group` of a table); on a network each group has its aggregator."""
    groups = population.groups()
    if (found := int(groups.max()) + 1) != clusters:
        raise InputError(
            f"clustering.clusters = {clusters}: clustering.method = 'planted' uses the data's groups, of which there "
            f"{'is 1' if found == 1 else f'are {found}'}; set clustering.clusters = {found}"
        )
    return Clustering(groups, clusters)
