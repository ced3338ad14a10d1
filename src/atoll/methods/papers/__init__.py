"""The methods, one file each: a paper's schedule, local rule, assignment and combine rule."""
