// Package results reads what "vkattn bench" saved.
package results

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
)

// File is the rows of one file.
type File struct {
	Path    string
	Rows    []Row
	Skipped []string // a line on each row that is left out
}

// Row is a row of a benchmark with the run that it belongs to.
type Row struct {
	bench.Row
	Run bench.RunInfo `json:"run"`
}

// Bench lists the rows without their runs.
func (f *File) Bench() []*bench.Row {
	out := make([]*bench.Row, len(f.Rows))
	for i := range f.Rows {
		out[i] = &f.Rows[i].Row
	}
	return out
}

// extensions of the files that Load takes from a folder.
var extensions = []string{".json", ".jsonl", ".json.gz", ".jsonl.gz"}

// ErrNoRows is the error of a file that has no row of a benchmark.
var ErrNoRows = errors.New("no rows of vkattn bench on one device (rows of verify and of --ranks are others)")

var errEmpty = errors.New("is empty")

// ErrSchema is the error of a file that a later program wrote.
var ErrSchema = errors.New("rows of a later version of vkattn")

// Load reads files, and of folders every file that has rows of a benchmark, in the order of
// their names. A file that is named itself must have rows.
func Load(paths []string) ([]File, error) {
	var out []File
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, pathError(path, err)
		}
		if !info.IsDir() {
			f, err := ReadFile(path)
			if err != nil {
				return nil, err
			}
			out = append(out, f)
			continue
		}
		before := len(out)
		// With a separator at its end, a link to a folder is the folder.
		err = filepath.WalkDir(path+string(filepath.Separator), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.ContainsFunc(extensions, func(e string) bool { return strings.HasSuffix(name, e) }) {
				return err
			}
			if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() { // opening a pipe waits for its writer
				return nil
			}
			f, err := ReadFile(name)
			if err == nil {
				out = append(out, f)
			} else if errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrSchema) {
				return err
			}
			return nil // a file of something else
		})
		if err != nil {
			return nil, err
		}
		if len(out) == before {
			return nil, fmt.Errorf("%s: %w", path, ErrNoRows)
		}
	}
	return out, nil
}

// ReadFile reads the rows of a file; without any its error is [ErrNoRows].
func ReadFile(path string) (f File, err error) {
	in, err := os.Open(path)
	if err != nil {
		return f, pathError(path, err)
	}
	defer in.Close()
	rows, skipped, err := Read(in)
	if err != nil {
		return f, pathError(path, err)
	}
	return File{Path: path, Rows: rows, Skipped: skipped}, nil
}

// pathError names the file of an error once, and no function of the system.
func pathError(path string, err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// mostBytes bounds the decompressed size of one file.
const mostBytes = 1 << 30

// mostDamage bounds the lines of a file that are no JSON. A file with more is taken for something else.
const mostDamage = 100

// Read reads rows in the format json or jsonl, compressed with gzip or not. Lines that have
// no times are left out: files may hold rows of other programs too. A row that is damaged or has
// impossible times is left out with a line in skipped; without any other row it is the error.
func Read(r io.Reader) (rows []Row, skipped []string, err error) {
	in := bufio.NewReader(r)
	if _, err := in.Peek(1); errors.Is(err, io.EOF) {
		return nil, nil, errEmpty
	}
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		plain, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, fmt.Errorf("not a gzip file: %w", err)
		}
		in = bufio.NewReader(plain)
	}
	data, err := io.ReadAll(io.LimitReader(in, mostBytes))
	if err != nil {
		return nil, nil, err
	}
	var f reader
	if err := f.read(data); err != nil {
		return nil, nil, err
	}
	switch {
	case len(f.rows) > 0:
		return f.rows, f.skipped, nil
	case f.first != nil:
		return nil, nil, f.first
	}
	return nil, nil, ErrNoRows
}

// reader reads the rows of one file.
type reader struct {
	rows    []Row
	seen    int // values that may be rows
	skipped []string
	first   error // of the first row that is left out
}

func (f *reader) skip(err error) {
	f.skipped = append(f.skipped, err.Error())
	if f.first == nil {
		f.first = err
	}
}

// read reads a document, or one line after the other.
func (f *reader) read(data []byte) error {
	if json.Valid(data) {
		return f.value(data)
	}
	damaged := 0
	for line := range bytes.Lines(data) {
		switch line = bytes.TrimSpace(line); {
		case damaged == mostDamage || len(line) == 0:
		case json.Valid(line):
			if err := f.value(line); err != nil {
				return err
			}
		default:
			if damaged++; damaged == 1 {
				f.skip(fmt.Errorf("row %d: not the JSON of a benchmark: %w", f.seen+1, json.Unmarshal(line, new(any))))
			}
		}
	}
	if damaged > 1 {
		f.skipped = append(f.skipped, fmt.Sprintf("%d more lines that are not the JSON of a benchmark", damaged-1))
	}
	return nil
}

// value takes a line of jsonl, or the document of json.
func (f *reader) value(text []byte) error {
	var document struct {
		Run  bench.RunInfo     `json:"run"`
		Rows []json.RawMessage `json:"rows"`
	}
	if json.Unmarshal(text, &document) != nil || document.Rows == nil {
		return f.row(text, nil)
	}
	if err := checkSchema(&document.Run); err != nil {
		return err
	}
	for _, one := range document.Rows {
		if err := f.row(one, &document.Run); err != nil {
			return err
		}
	}
	return nil
}

// row takes one row. run is the run of its document; nil: the row has its own.
func (f *reader) row(text []byte, run *bench.RunInfo) error {
	f.seen++
	r, found, err := decodeRow(text)
	switch {
	case errors.Is(err, ErrSchema):
		return err
	case err != nil:
		f.skip(fmt.Errorf("row %d: %w", f.seen, err))
	case found:
		if run != nil {
			r.Run = *run
		}
		f.rows = append(f.rows, r)
	}
	return nil
}

func decodeRow(text []byte) (r Row, found bool, err error) {
	var is struct {
		Device *string       `json:"device"`
		Batch  *int          `json:"batch"`
		Status *bench.Status `json:"status"`
		Ms     *struct{}     `json:"ms"`
		Form   string        `json:"form"` // of old files: the baseline
	}
	if json.Unmarshal(text, &is) != nil || is.Device == nil || is.Batch == nil || is.Status == nil {
		return r, false, nil
	}
	if is.Ms == nil && (*is.Status == bench.OK || *is.Status == bench.Ablated) {
		return r, false, nil // of another command, which times nothing
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, false, err
	}
	if err := checkSchema(&r.Run); err != nil {
		return r, false, err
	}
	if r.Status == bench.OK || r.Status == bench.Ablated {
		if err := checkTimes(&r.Row); err != nil {
			return r, false, err
		}
	}
	if r.Baseline == "" {
		r.Baseline = bench.Baseline(is.Form)
	}
	return r, true, nil
}

// Bounds of the time of a run in ms. Sums and ratios of such times are finite.
const shortest, longest = 1e-9, 1e15

// checkTimes refuses the times of a row that no run takes, as a clock that stands still or runs backwards
// gives them.
func checkTimes(r *bench.Row) error {
	possible := func(ms float64) bool { return ms >= shortest && ms <= longest }
	for _, ms := range r.Samples {
		if !possible(ms) {
			return fmt.Errorf("a run of %v ms", ms)
		}
	}
	for _, s := range []struct {
		what string
		ms   float64
	}{{"median", r.Ms.Median}, {"least time", r.Ms.Min}, {"longest time", r.Ms.Max}} {
		if !possible(s.ms) {
			return fmt.Errorf("a %s of %v ms", s.what, s.ms)
		}
	}
	return nil
}

// checkSchema refuses the rows of a later program, whose fields may mean something else.
func checkSchema(run *bench.RunInfo) error {
	if run.Schema > bench.SchemaVersion {
		return fmt.Errorf("%w: schema %d, this program reads up to %d", ErrSchema, run.Schema, bench.SchemaVersion)
	}
	return nil
}
