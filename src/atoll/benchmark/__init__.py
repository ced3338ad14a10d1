"""The benchmark: many methods on suites of natural and made groups, tuned alike, ranked with intervals."""
