"""What images and videos share: DALI and its devices, pipelines, the engines that run them, memory and outputs."""
