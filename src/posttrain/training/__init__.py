"""How trajectories become weights: packing, losses, gradients, updates."""
