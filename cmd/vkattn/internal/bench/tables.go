package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/half"
	"vkattn/internal/hostmem"
	"vkattn/internal/inputs"
)

// Tables are the tables of modifiers as text: NAME=FILE of a .npy file, or NAME=AxB for random floats of these sizes, with
// commas. It is a string so that a Problem is comparable; [ParseTables] returns it, and reads the files.
type Tables string

// tableFiles are the files that ParseTables has read.
var tableFiles sync.Map // of tableFile, by path

type tableFile struct {
	typ  score.Type
	dims []int
	data []byte
}

var tableSizes = regexp.MustCompile(`^[0-9]+(x[0-9]+)*$`)

// ParseTables parses a list of tables and reads their files.
func ParseTables(text string) (Tables, error) {
	var names []string
	for _, item := range strings.Split(text, ",") {
		name, source, _ := strings.Cut(item, "=")
		switch {
		case name == "" || source == "":
			return "", fmt.Errorf("%q: want name=file.npy, or name=16x32 for random floats of these sizes", item)
		case slices.Contains(names, name):
			return "", fmt.Errorf("table %s is given twice", name)
		}
		names = append(names, name)
		f, err := newTable(source)
		if err == nil && (len(f.dims) < 1 || len(f.dims) > score.MaxRank) {
			err = fmt.Errorf("%d axes, want 1 to %d", len(f.dims), score.MaxRank)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", item, err)
		}
		tableFiles.Store(source, f)
	}
	return Tables(text), nil
}

// newTable reads a file, or takes sizes from text.
func newTable(source string) (f tableFile, err error) {
	if tableSizes.MatchString(source) {
		f.typ = score.TypeFloat
		for _, n := range strings.Split(source, "x") {
			size, err := strconv.Atoi(n)
			if err != nil || size < 1 || hostmem.Product(append(f.dims, size)...) > attention.MaxLength {
				return f, fmt.Errorf("want sizes of at least 1, and at most %d elements", attention.MaxLength)
			}
			f.dims = append(f.dims, size)
		}
		return f, nil
	}
	open, err := npy.Open(source, npy.Int32, npy.Int64, npy.Float16, npy.BFloat16, npy.Float32)
	if err != nil {
		return f, err
	}
	a, err := open.Load()
	if err := errors.Join(err, open.Close()); err != nil {
		return f, err
	}
	f.typ, f.dims = score.TypeFloat, a.Shape
	switch a.DType {
	case npy.Int32, npy.Int64:
		v, err := a.Int32s()
		if err != nil {
			return f, err
		}
		f.typ = score.TypeInt
		f.data, err = binary.Append(nil, binary.LittleEndian, v)
		return f, err
	case npy.Float32:
		f.data = a.Data
	default:
		dtype := attention.F16
		if a.DType == npy.BFloat16 {
			dtype = attention.BF16
		}
		wide := make([]float32, len(a.Data)/2)
		dtype.Decode(wide, a.Data)
		f.data = make([]byte, 4*len(wide))
		half.EncodeF32(f.data, wide)
	}
	return f, nil
}

// each visits the tables.
func (t Tables) each(visit func(i int, name string, f tableFile)) {
	if t == "" {
		return
	}
	for i, item := range strings.Split(string(t), ",") {
		name, source, _ := strings.Cut(item, "=")
		f, _ := tableFiles.Load(source)
		visit(i, name, f.(tableFile))
	}
}

// declared are the names, types and axes of the tables.
func (t Tables) declared() (list []score.Table) {
	t.each(func(_ int, name string, f tableFile) {
		if f.typ == score.TypeInt {
			list = append(list, score.IntTable(name, len(f.dims)))
		} else {
			list = append(list, score.FloatTable(name, len(f.dims)))
		}
	})
	return list
}

// Names are the names of the tables, with the sizes of each.
func (t Tables) Names() (list []string, dims [][]int) {
	t.each(func(_ int, name string, f tableFile) { list, dims = append(list, name), append(dims, f.dims) })
	return list, dims
}

// Files are the files of the tables, or their sizes as texts.
func (t Tables) Files() (list []string) {
	for item := range strings.SplitSeq(string(t), ",") {
		_, source, _ := strings.Cut(item, "=")
		list = append(list, source)
	}
	return list
}

// Memory are the tables in host memory.
func (t Tables) Memory(seed uint64) (list []attention.Table) {
	t.each(func(i int, name string, f tableFile) {
		table := attention.Table{Name: name}
		copy(table.Dims[:], f.dims)
		if table.Host = f.data; f.data == nil {
			table.Host = inputs.New(int64(hostmem.Product(f.dims...)), attention.F32, inputs.Normal, seed+16+uint64(i))
		}
		list = append(list, table)
	})
	return list
}

// Bytes is the memory of the tables.
func (t Tables) Bytes() (n uint64) {
	t.each(func(_ int, _ string, f tableFile) { n = hostmem.Sum(n, hostmem.Product(append(f.dims, 4)...)) })
	return n
}
