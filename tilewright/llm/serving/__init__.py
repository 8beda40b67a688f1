"""Answers for many clients at once, from one model: `Scheduler` says who is fed when, `Worker` runs it on a thread, and
`http` has an interface as that of OpenAI on it."""
