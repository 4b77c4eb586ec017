"""Is what a request is told the same whatever the company? The same requests under every circumstance, as one table."""
