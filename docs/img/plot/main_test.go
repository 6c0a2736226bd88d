package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The committed picture shows the committed data.
func TestPictureIsUpToDate(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	raw, err := os.Open(filepath.Join(root, rawFile))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no docs here")
	}
	require.NoError(t, err)
	defer raw.Close()
	rows, err := read(raw)
	require.NoError(t, err)
	want, err := draw(rows)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, svgFile))
	require.NoError(t, err)
	require.True(t, string(want) == string(got), "%s is old: go run ./docs/img/plot", svgFile)
}

func TestDrawRefusesMissingRows(t *testing.T) {
	_, err := draw(nil)
	require.ErrorContains(t, err, "no rows")
	_, err = draw([]row{
		{Tier: "flash", SeqlenQ: 1024, HeadDim: 64, Causal: "none", TFLOPS: 1},
		{Tier: "flash", SeqlenQ: 2048, HeadDim: 64, Causal: "none", TFLOPS: 1},
	})
	require.ErrorContains(t, err, "cuda fa3 at length 1024")
}
