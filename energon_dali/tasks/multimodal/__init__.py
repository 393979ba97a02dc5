"""Tasks on images and text together."""
