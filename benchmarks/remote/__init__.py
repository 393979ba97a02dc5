"""Benchmarks of remote storage, and the S3 server that they and the tests read from."""
