"""What images and videos share: DALI, its devices, pipelines, the engines that run them, and what blocks take."""
