"""Pure: (spec, observed) -> desired children."""
