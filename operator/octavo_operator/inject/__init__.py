"""The admission webhook that adds the engine to annotated pods."""
