package tests

func tuneProperties() {}
