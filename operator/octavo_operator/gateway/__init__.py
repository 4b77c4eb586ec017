"""The endpoint picker and Envoy's configuration."""
