"""The local web page that shows a dataset: `energon-dali view`."""
