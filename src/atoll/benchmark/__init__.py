"""The benchmark: many methods on suites of natural and synthetic groups, tuned alike, ranked with intervals."""
