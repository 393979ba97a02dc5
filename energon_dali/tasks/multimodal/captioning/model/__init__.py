"""What reads patches and text: the parts of the model, and the backbones that fit."""
