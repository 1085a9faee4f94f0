"""Reading N rows: potentials, minibatches, control variates, exact sums."""
