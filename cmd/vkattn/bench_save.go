package main

import (
	"context"
	"fmt"
	"io"
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

// parseSaved parses the files of --save, each in one of the formats.
func parseSaved(paths []string, formats []bench.Format) ([]saved, error) {
	var out []saved
	for _, path := range paths {
		format, err := bench.ParseFormat(strings.TrimPrefix(filepath.Ext(path), "."), formats)
		if err != nil {
			var names []string
			for _, f := range formats {
				names = append(names, "."+string(f))
			}
			return nil, badInputf("--save %s: the name ends in none of %s", path, strings.Join(names, ", "))
		}
		out = append(out, saved{path, format})
	}
	return out, nil
}

// openSaved opens the files before anything is measured, so that a folder that cannot
// be written to is refused at once. Commit moves them into place.
func openSaved[R any](set *outfile.Set, list []saved, printer func(bench.Format, io.Writer) bench.Printer[R]) ([]bench.Printer[R], error) {
	var out []bench.Printer[R]
	for _, s := range list {
		w, err := set.Add(s.path)
		if err != nil {
			return nil, badInputf("--save %s: %w", s.path, err)
		}
		out = append(out, printer(s.format, &savedFile{w, s.path}))
	}
	return out, nil
}

// savedFile is a file of --save, whose errors name it.
type savedFile struct {
	w    io.Writer
	path string
}

func (f *savedFile) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		err = fmt.Errorf("--save %s: %w", f.path, err)
	}
	return n, err
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
