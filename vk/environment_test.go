package vk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A value that says neither yes nor no is refused before Vulkan is looked for.
func TestOpenRefusesAnUnknownValidation(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "1": true} {
		t.Setenv(ValidationEnv, value)
		on, err := ValidationByEnv()
		require.NoError(t, err)
		require.Equal(t, want, on, value)
	}
	for _, value := range []string{"banana", "yes", "01"} {
		t.Setenv(ValidationEnv, value)
		_, err := Open(Options{})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, ValidationEnv+` is "`+value+`", want 1, 0 or nothing`)
	}
}
