"""The methods, a file each: what its paper says, and the schedule, local rule, assignment and combine rule it is."""
