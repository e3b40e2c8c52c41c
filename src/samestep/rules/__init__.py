"""The rules of other frameworks, for explaining and recognising; no engine runs them."""
