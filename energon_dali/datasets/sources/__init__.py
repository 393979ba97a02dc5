"""Several source datasets as one, below a single task encoder: blended by weight or by repetitions, or one by one."""
