"""What learns: the interface of a learner, what all learners share, and the transformer."""
