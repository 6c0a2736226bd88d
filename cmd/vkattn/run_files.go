package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/hostmem"
)

// inputFile is a flag that names an input file.
type inputFile struct {
	flag, usage string
	types       []npy.DType // of its elements; nil: those of K and V

	// A file that the call takes as it is has these.
	shape func(*runInputs) fileShape            // nil: it is checked elsewhere
	host  func(*attention.BackwardArgs) *[]byte // where its elements go
	as    func(*runInputs) attention.DType      // what they are converted to; nil: nothing
	open  func(*npy.File, *attention.Args)      // completes the arguments; nil: nothing to do
}

// Element types.
var (
	floats   = []npy.DType{npy.Float16, npy.Float32, npy.BFloat16}
	integers = []npy.DType{npy.Int32, npy.Int64}
	booleans = []npy.DType{npy.Bool, npy.UInt8}
	float32s = []npy.DType{npy.Float32}
)

// tensorFiles are Q, K and V.
var tensorFiles = []inputFile{
	{flag: "q", usage: "query `file`", types: floats, host: func(a *attention.BackwardArgs) *[]byte { return &a.Q.Host },
		as: storage},
	{flag: "k", usage: "key `file`", host: func(a *attention.BackwardArgs) *[]byte { return &a.K.Host }, as: storageOfKV},
	{flag: "v", usage: "value `file`", host: func(a *attention.BackwardArgs) *[]byte { return &a.V.Host },
		as: storageOfKV},
}

// optionFiles are those of the options of the call.
var optionFiles = []inputFile{
	{flag: "cu-seqlens-q", usage: "pack Q and O: sequence b has rows cu[b] to cu[b+1]-1; integers [B+1] in a `file`",
		types: integers},
	{flag: "cu-seqlens-k", usage: "pack K and V in the same way; integers [B+1] in a `file`", types: integers},
	{flag: "seqused-q", usage: "rows used of each sequence; integers [B] in a `file`", types: integers},
	{flag: "seqused-k", usage: "keys used of each sequence; integers [B] in a `file`", types: integers},
	{flag: "block-table", usage: "paged K and V: the pages of each sequence; integers [B, N] in a `file`",
		types: integers},
	{flag: "sparse-tokens", usage: "keys that each sequence and KV head attends to; integers [B, Hkv, N] padded with " +
		"-1, or [total] with --sparse-offsets, or for each row [B, Sq, Hkv, N] padded with -1, in a `file`", types: integers},
	{flag: "sparse-offsets", usage: "start of the list of each sequence and KV head in --sparse-tokens; integers " +
		"[B*Hkv+1] in a `file`", types: integers},
	{flag: "alibi", usage: "ALiBi slopes; floats [Hq] in a `file`", types: floats, shape: eachHead, as: single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.ALiBi.Host }},
	{flag: "sinks", usage: "attention sinks: one logit per head in the row sum and LSE, without a value; floats [Hq] " +
		"in a `file`", types: floats, shape: eachHead, as: single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.Sinks.Host }},
	{flag: "bias", usage: "bias added to the scores; floats [1 or B, 1 or Hq, 1 or Sq, Sk] in a `file`", types: floats,
		shape: eachScore,
		host:  func(a *attention.BackwardArgs) *[]byte { return &a.Bias.Host },
		open: func(f *npy.File, a *attention.Args) {
			s := f.Shape
			a.Bias = &attention.Bias{DType: fileType(f.DType), Batches: s[0], Heads: s[1], Rows: s[2]}
			a.Bias.Strides = attention.BHSD(s[1], s[2], s[3])
		}},
	{flag: "mask", usage: "1 where a row attends to a key, else 0; booleans or uint8 [1 or B, 1 or Hq, 1 or Sq, Sk] " +
		"in a `file`", types: booleans, shape: eachScore,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.Mask.Host },
		open: func(f *npy.File, a *attention.Args) {
			s := f.Shape
			a.Mask = &attention.Mask{Batches: s[0], Heads: s[1], Rows: s[2]}
			a.Mask.Strides = attention.BHSD(s[1], s[2], s[3])
		}},
	{flag: "block-mask", usage: "1 where a block of rows attends to a block of keys, else 0; booleans or uint8 [1 or " +
		"B, 1 or Hq, ceil(Sq/rows), ceil(Sk/keys)] in a `file`", types: booleans, shape: eachBlock},
	{flag: "k-scale", usage: "scales of int8 and float8 keys; float32 [B, Hkv, Sk], paged [pages, Hkv, page size], " +
		"packed [Hkv, total], in a `file`", types: float32s, shape: eachKey,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.KScale.Host }},
	{flag: "v-scale", usage: "scales of int8 and float8 values, in the shape of --k-scale, in a `file`; required with " +
		"--v-dim too", types: float32s, shape: eachKey,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.VScale.Host }},
}

// gradientFiles are those of a backward pass.
var gradientFiles = []inputFile{
	{flag: "do", usage: "gradient of O, in its shape; floats in a `file`", types: floats, shape: ofO, as: storage,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.DO.Host }},
	{flag: "dlse", usage: "gradient of LSE, in its shape; floats in a `file` (default: 0)", types: floats, shape: ofLSE,
		as:   single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.DLSE.Host }},
	{flag: "o-in", usage: "O of an earlier forward pass, which run then does not compute; floats in a `file`; needs " +
		"--lse-in", types: floats, shape: ofO, as: storage,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.O.Host }},
	{flag: "lse-in", usage: "LSE of the same forward pass; floats in a `file`", types: floats, shape: ofLSE, as: single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.LSE.Host }},
}

// inputFiles are all of them.
var inputFiles = slices.Concat(tensorFiles, optionFiles, gradientFiles)

func storage(in *runInputs) attention.DType { return in.config.DType }

// storageOfKV is the type of K and V, of quantized ones as they are in the file.
func storageOfKV(in *runInputs) attention.DType {
	if in.o.call.KeyType != attention.KVSame {
		return fileType(in.files["k"].DType)
	}
	return in.config.DType
}

func ofGradients(in *runInputs) attention.DType { return in.config.GradientType() }

func single(*runInputs) attention.DType { return attention.F32 }

// outputFile is a flag that names an output file: of a tensor of the call, as float32.
type outputFile struct {
	flag, usage string
	gradient    bool
	shape       func(*runInputs) fileShape
	as          func(*runInputs) attention.DType // of the tensor
	host        func(*attention.BackwardArgs) *[]byte

	table string // whose gradient it is
}

var outputFiles = []outputFile{
	{flag: "o", usage: "output `file`", shape: ofO, as: storage, host: func(a *attention.BackwardArgs) *[]byte { return &a.O.Host }},
	{flag: "lse", usage: "log-sum-exp output `file`", shape: ofLSE, as: single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.LSE.Host }},
	{flag: "dq", usage: "output `file` of the gradient of Q; gradients need --do", gradient: true, shape: ofInput(0),
		as: ofGradients, host: func(a *attention.BackwardArgs) *[]byte { return &a.DQ.Host }},
	{flag: "dk", usage: "output `file` of the gradient of K", gradient: true, shape: ofInput(1),
		as: ofGradients, host: func(a *attention.BackwardArgs) *[]byte { return &a.DK.Host }},
	{flag: "dv", usage: "output `file` of the gradient of V", gradient: true, shape: ofInput(2),
		as: ofGradients, host: func(a *attention.BackwardArgs) *[]byte { return &a.DV.Host }},
	{flag: "dbias", usage: "output `file` of the gradient of --bias", gradient: true, as: single,
		shape: func(in *runInputs) fileShape { return fileShape{axes: in.files["bias"].Shape} },
		host:  func(a *attention.BackwardArgs) *[]byte { return &a.DBias.Host }},
	{flag: "dsinks", usage: "output `file` of the gradient of --sinks", gradient: true, shape: eachHead, as: single,
		host: func(a *attention.BackwardArgs) *[]byte { return &a.DSinks.Host }},
}

// elements is the number of elements of an output.
func (x *outputFile) elements(in *runInputs) uint64 { return hostmem.Product(x.shape(in).axes...) }

// bytes is the size of its tensor.
func (x *outputFile) bytes(in *runInputs) uint64 {
	return hostmem.Product(x.elements(in), uint64(x.as(in).Size()))
}

// array is an output as float32 in the layout of the files.
func (p *runProblem) array(x *outputFile) *npy.Array {
	return &npy.Array{DType: npy.Float32, Shape: x.shape(p.in).axes, Data: convert(*x.host(&p.args), x.as(p.in), attention.F32)}
}

// paths are the names of files by flag.
type paths map[string]*string

// add adds flags for files.
func (p paths) add(f *pflag.FlagSet, files ...inputFile) {
	for _, x := range files {
		p[x.flag] = f.String(x.flag, "", x.usage)
	}
}

func (p paths) addOutputs(f *pflag.FlagSet, gradients bool) {
	for _, x := range outputFiles {
		if x.gradient == gradients {
			p[x.flag] = f.String(x.flag, "", x.usage)
		}
	}
}

// of is the file of a flag, has whether there is one.
func (p paths) of(flag string) string { return *p[flag] }

func (p paths) has(flag string) bool { return p.of(flag) != "" }

// given lists those of some flags that name a file.
func (p paths) given(files []inputFile) (flags []string) {
	for _, x := range files {
		if p.has(x.flag) {
			flags = append(flags, "--"+x.flag)
		}
	}
	return flags
}

// targets lists the output files; gradients: those of gradients alone.
func (o *runFlags) targets(gradients bool) (list []outputFile) {
	for _, x := range slices.Concat(outputFiles, o.outputs) {
		if o.has(x.flag) && (x.gradient || !gradients) {
			list = append(list, x)
		}
	}
	return list
}

// computed lists the outputs that the call computes. Gradients need LSE.
func (o *runFlags) computed() (list []outputFile) {
	for _, x := range slices.Concat(outputFiles, o.outputs) {
		if o.has(x.flag) || !x.gradient && !o.has("o-in") && (x.flag == "o" || o.wanted()) {
			list = append(list, x)
		}
	}
	return list
}

// wanted reports whether a gradient has an output file.
func (o *runFlags) wanted() bool { return len(o.targets(true)) > 0 }

// fileShape is the shape that a file must have.
type fileShape struct {
	axes []int
	or1  int    // number of first axes that may be 1
	note string // in an error
}

func (s fileShape) String() string {
	if s.or1 == 0 {
		return fmt.Sprint(s.axes) + s.note
	}
	var list []string
	for i, n := range s.axes {
		text := fmt.Sprint(n)
		if i < s.or1 {
			text = "1 or " + text
		}
		list = append(list, text)
	}
	return "[" + strings.Join(list, ", ") + "]" + s.note
}

func (s fileShape) fits(shape []int) bool {
	if len(shape) != len(s.axes) {
		return false
	}
	for i, n := range shape {
		if n != s.axes[i] && (n != 1 || i >= s.or1) {
			return false
		}
	}
	return true
}

func eachHead(in *runInputs) fileShape {
	return fileShape{axes: []int{in.shape.Hq}, note: ", one number per query head"}
}

func eachScore(in *runInputs) fileShape {
	return fileShape{axes: []int{in.shape.B, in.shape.Hq, in.shape.Sq, in.shape.Sk}, or1: 3}
}

func eachBlock(in *runInputs) fileShape {
	bq, bk := in.o.block[0], in.o.block[1]
	return fileShape{axes: []int{in.shape.B, in.shape.Hq, (in.shape.Sq + bq - 1) / bq, (in.shape.Sk + bk - 1) / bk},
		or1:  2,
		note: fmt.Sprintf(" for blocks of %d rows and %d keys", bq, bk)}
}

// eachKey is the shape of scales.
func eachKey(in *runInputs) fileShape {
	k := in.axes[1]
	switch in.o.kvBlock {
	case attention.KVBlockHead:
		return fileShape{axes: []int{k.heads}}
	case attention.KVBlockTensor:
		return fileShape{axes: []int{1}}
	}
	axes := []int{k.batch, k.heads, (k.rows-1)/max(in.o.kvBlock, 1) + 1}
	if in.o.has("cu-seqlens-k") {
		axes = axes[1:]
	}
	return fileShape{axes: axes}
}

func ofO(in *runInputs) fileShape {
	o := in.outputAxes()
	return fileShape{axes: o.shape(in.o.has("cu-seqlens-q"), o.dim)}
}

func ofLSE(in *runInputs) fileShape {
	o := in.outputAxes()
	if in.o.has("cu-seqlens-q") {
		return fileShape{axes: []int{o.heads, o.rows}}
	}
	return fileShape{axes: []int{o.batch, o.heads, o.rows}}
}

// ofInput is the shape of the gradient of Q, K or V.
func ofInput(i int) func(*runInputs) fileShape {
	return func(in *runInputs) fileShape {
		a := in.axes[i]
		return fileShape{axes: a.shape(in.o.has([]string{"cu-seqlens-q", "cu-seqlens-k"}[min(i, 1)]), a.dim)}
	}
}

// readShapes checks the shapes of files, given lengths, and completes the arguments.
func (in *runInputs) readShapes(files []inputFile) error {
	for _, x := range files {
		f := in.files[x.flag]
		if f == nil || x.shape == nil {
			continue
		}
		if want := x.shape(in); !want.fits(f.Shape) {
			return wrong(x.flag, "shape %v, want %v", f.Shape, want)
		}
		if x.open != nil {
			x.open(f, &in.args)
		}
	}
	return nil
}

// loadFiles reads the files that the call takes as they are.
func (in *runInputs) loadFiles(a *attention.BackwardArgs) error {
	for _, x := range inputFiles {
		f := in.files[x.flag]
		if f == nil || x.host == nil {
			continue
		}
		array, err := f.Load()
		if err != nil {
			return wrong(x.flag, "%w", err)
		}
		if x.as != nil {
			array.Data = convert(array.Data, fileType(array.DType), x.as(in))
		}
		*x.host(a) = array.Data
	}
	return nil
}
