"""From a trained bundle to recommendations, scores and explanations in raw ids."""
