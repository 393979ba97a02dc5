"""How a run changes its weights: rates over the steps, and which of them decay."""
