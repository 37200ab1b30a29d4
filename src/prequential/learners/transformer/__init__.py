"""The learner of the paper: a transformer over recent examples, trained online with replay streams."""
