"""What each route does between a request's bytes and its answer: discovery, typed operations, OpenAI's, admin."""
