"""A web service for a trained model: JSON, and a page for dropping photos."""
