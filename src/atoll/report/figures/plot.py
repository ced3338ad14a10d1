"""Drawing with Matplotlib. `curves` returns a figure of a whole study: a mean and a band for each setting.

    atoll.plot.curves("runs/mine", width="column").savefig("curves.pdf")

It also draws into axes of your own; the other functions take them first, and leave figure, size and style to you.

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.16, 2.5))
    atoll.plot.curves(runs, "test_accuracy", "virtual_time", ax=left)
    atoll.plot.gantt(right, events)
    figure.savefig("figure.pdf")

Functions whose figure has a legend outside the axes return its entries, for ``ax.legend(handles=...)``. Bad input
raises `InputError`.
"""

from atoll.report.figures.before_training import draw_cluster_shares as clusters
from atoll.report.figures.before_training import draw_gantt as gantt
from atoll.report.figures.before_training import draw_shares as shares
from atoll.report.figures.client_curves import draw_clients as clients
from atoll.report.figures.comparisons import draw_bars as bars
from atoll.report.figures.comparisons import draw_completion as completion
from atoll.report.figures.network_map import draw_map as network
from atoll.report.figures.sizes import draw_size_against as size_against
from atoll.report.figures.study_curves import curves as curves

__all__ = ["bars", "clients", "clusters", "completion", "curves", "gantt", "network", "shares", "size_against"]
