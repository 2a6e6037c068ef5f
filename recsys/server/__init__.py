"""Recommendations, scores and explanations over HTTP."""
