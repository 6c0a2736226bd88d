package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/outfile"
)

// saved is a file of --save with the format of its extension.
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

// openSaved opens the files before anything is measured, so that a folder that cannot
// be written to is refused at once. Commit moves them into place.
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

// commitRows moves the files of --save into place. After a signal it does so only if a
// row is finished: otherwise the old files are worth more. The cleanup of the signal
// waits flushTime for it and then discards the files.
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
