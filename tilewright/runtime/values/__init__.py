"""Arrays that go into a model and come out of it."""
