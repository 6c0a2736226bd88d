package compare

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"vkattn/cmd/vkattn/internal/bench"
)

// ReadFile reads the rows of a file of "vkattn bench -o json" or "-o jsonl", which may be
// compressed by gzip.
func ReadFile(path string) ([]*bench.Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	rows, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

// Read reads rows as ReadFile does.
func Read(r io.Reader) ([]*bench.Row, error) {
	in := bufio.NewReader(r)
	if magic, err := in.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReader(z)
	}
	var rows []*bench.Row
	for dec := json.NewDecoder(in); ; {
		var value json.RawMessage
		switch err := dec.Decode(&value); {
		case errors.Is(err, io.EOF) && len(rows) > 0:
			return rows, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("no rows")
		case err != nil:
			return nil, fmt.Errorf("not the JSON of a benchmark: %w", err)
		}
		var doc struct{ Rows *[]*bench.Row }
		if err := json.Unmarshal(value, &doc); err == nil && doc.Rows != nil {
			rows = append(rows, *doc.Rows...)
			continue
		}
		row := &bench.Row{}
		if err := json.Unmarshal(value, row); err != nil {
			return nil, fmt.Errorf("not the JSON of a benchmark: %w", err)
		}
		if row.Status == "" || row.Tier == "" {
			return nil, errors.New("not the JSON of a benchmark: a row has no status or no tier")
		}
		rows = append(rows, row)
	}
}
