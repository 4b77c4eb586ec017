"""collect -> estimate -> decide -> actuate."""
