"""`/v1/responses`: what is particular to that route of a request's fields, and how its answer looks."""
