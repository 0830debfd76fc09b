"""Speed, as ratios: what Cerebro takes against what plain tools take for the same, in the same minutes."""
