package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/outfile"
)

// saved is a file that takes the rows too, in the format its name ends in.
type saved struct {
	path   string
	format bench.Format
}

func parseSaved(paths []string) ([]saved, error) {
	var out []saved
	for _, path := range paths {
		format, err := bench.ParseFormat(strings.TrimPrefix(filepath.Ext(path), "."))
		if err != nil {
			return nil, badInputf("--save %s: the name ends in none of .md, .csv, .json, .jsonl", path)
		}
		out = append(out, saved{path, format})
	}
	return out, nil
}

// openSaved makes the files before anything is measured, so that a folder that
// takes none is known first. They appear at Commit.
func openSaved(set *outfile.Set, list []saved, info *bench.RunInfo) ([]bench.Printer, error) {
	var out []bench.Printer
	for _, s := range list {
		w, err := set.Add(s.path)
		if err != nil {
			return nil, badInputf("--save %s: %w", s.path, err)
		}
		out = append(out, bench.NewPrinter(s.format, w, info))
	}
	return out, nil
}

// commitRows moves the files into place. After a signal it does so if any row is
// finished: without one, what was saved before is worth more. The cleanup of the
// signal waits a moment for it and discards the files then.
func commitRows(ctx context.Context, set *outfile.Set, finished int) error {
	if finished > 0 {
		ctx = context.WithoutCancel(ctx)
	} else if ctx.Err() != nil {
		return nil
	}
	if err := set.Commit(ctx); err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	return nil
}
