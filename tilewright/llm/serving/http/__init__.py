"""An interface over HTTP as that of OpenAI: completions, chats, embeddings, models."""
