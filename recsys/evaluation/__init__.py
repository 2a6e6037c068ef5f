"""From scorers to ranks, from ranks to figures, from figures to comparisons."""
