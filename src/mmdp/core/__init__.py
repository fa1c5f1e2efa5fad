"""The mathematics: models, kernels, objectives, policies, search, bounds, methods, solve."""
