"""The discrete-event fleet that policies are judged in."""
