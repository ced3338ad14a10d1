"""FedUC's clustering: the least convergence bound under the aggregators' time limits."""
