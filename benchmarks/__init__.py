"""Registered CPU workloads beside what users have today, the demo, and the pictures both are made of."""
