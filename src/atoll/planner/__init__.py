"""Plans: which pattern, clustering and limits suit a network and a budget, by schedules first and short races then."""
