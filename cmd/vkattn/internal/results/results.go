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
	Path string
	Rows []Row
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
	rows, err := Read(in)
	if err != nil {
		return f, pathError(path, err)
	}
	return File{Path: path, Rows: rows}, nil
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

// Read reads rows in the format json or jsonl, compressed with gzip or not. Lines that have
// no times are left out: files may hold rows of other programs too.
func Read(r io.Reader) ([]Row, error) {
	in := bufio.NewReader(r)
	if _, err := in.Peek(1); errors.Is(err, io.EOF) {
		return nil, errEmpty
	}
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		plain, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("not a gzip file: %w", err)
		}
		in = bufio.NewReader(plain)
	}
	var rows []Row
	for d := json.NewDecoder(io.LimitReader(in, mostBytes)); ; {
		var text json.RawMessage
		if err := d.Decode(&text); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("not the JSON of a benchmark: %w", err)
		}
		list, err := decode(text)
		if err != nil {
			return nil, err
		}
		rows = append(rows, list...)
	}
	if len(rows) == 0 {
		return nil, ErrNoRows
	}
	return rows, nil
}

// decode reads a line of jsonl, or the document of json.
func decode(text []byte) ([]Row, error) {
	var document struct {
		Run  bench.RunInfo     `json:"run"`
		Rows []json.RawMessage `json:"rows"`
	}
	if json.Unmarshal(text, &document) == nil && document.Rows != nil {
		if err := checkSchema(&document.Run); err != nil {
			return nil, err
		}
		var out []Row
		for _, one := range document.Rows {
			r, found, err := decodeRow(one)
			if err != nil {
				return nil, err
			}
			if r.Run = document.Run; found {
				out = append(out, r)
			}
		}
		return out, nil
	}
	r, found, err := decodeRow(text)
	if err != nil || !found {
		return nil, err
	}
	return []Row{r}, nil
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
		return r, false, fmt.Errorf("row: %w", err)
	}
	if err := checkSchema(&r.Run); err != nil {
		return r, false, err
	}
	for _, ms := range r.Samples {
		if ms != 0 && !(ms >= shortest && ms <= longest) {
			return r, false, fmt.Errorf("row: a run of %v ms", ms)
		}
	}
	if r.Baseline == "" {
		r.Baseline = bench.Baseline(is.Form)
	}
	return r, true, nil
}

// Bounds of the time of a run in ms. Sums and ratios of such times are finite.
const shortest, longest = 1e-9, 1e15

// checkSchema refuses the rows of a later program, whose fields may mean something else.
func checkSchema(run *bench.RunInfo) error {
	if run.Schema > bench.SchemaVersion {
		return fmt.Errorf("%w: schema %d, this program reads up to %d", ErrSchema, run.Schema, bench.SchemaVersion)
	}
	return nil
}
