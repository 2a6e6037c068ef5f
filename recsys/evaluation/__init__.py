"""From scorers to ranks, and from ranks to metrics with intervals."""
