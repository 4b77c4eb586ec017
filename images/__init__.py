"""The product's OCI images, written without a registry and without Docker."""
