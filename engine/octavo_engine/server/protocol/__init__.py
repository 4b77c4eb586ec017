"""OpenAI's protocol: which fields a request may have, what they mean, and how an answer looks."""
