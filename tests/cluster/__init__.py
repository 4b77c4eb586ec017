"""A real Kubernetes cluster on this machine, built from Go modules: see README.md beside this file."""
