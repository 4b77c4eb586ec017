"""Octavo's control plane and data plane on Kubernetes. Never imports torch."""
