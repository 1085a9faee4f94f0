"""What it takes to read N rows: potentials, minibatches, control variates, exact sums."""
