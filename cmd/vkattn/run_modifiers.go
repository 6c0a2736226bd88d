package main

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/npy"
)

// modifierFlags are the flags of `vkattn run` for score and mask modifiers and their tables.
type modifierFlags struct {
	score, mask string
	tables      []string // name=file
	gradients   []string // name=file of --dtable
	outputs     []outputFile
}

func (o *modifierFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.score, "score-mod", "", "what a score s becomes: an `expression` of s b h hkv i j row sq sk and tables")
	f.StringVar(&o.mask, "mask-mod", "", "whether a row attends to a key, of those that other flags leave: an `expression`")
	f.StringArrayVar(&o.tables, "table", nil, "`name=file` of a table of --score-mod and --mask-mod, integers or floats with 1 to 3 "+
		"axes; once for each")
}

func (o *modifierFlags) addGradients(f *pflag.FlagSet) {
	f.StringArrayVar(&o.gradients, "dtable", nil, "`name=file` of the gradient of a table of floats of --score-mod; once for each")
}

// readTableGradients reads the output files of --dtable.
func (o *runFlags) readTableGradients() error {
	for _, text := range o.gradients {
		name, path, _ := strings.Cut(text, "=")
		flag := "dtable " + name
		switch {
		case name == "" || path == "":
			return badInputf("--dtable %s: want name=file", text)
		case o.paths[flag] != nil:
			return badInputf("--%s is given twice", flag)
		case !slices.ContainsFunc(o.tables, func(t string) bool { return strings.HasPrefix(t, name+"=") }):
			return badInputf("--%s needs --table %s=file", flag, name)
		}
		o.paths[flag] = &path
		o.outputs = append(o.outputs, outputFile{flag: flag, gradient: true, array: func(p *runProblem) *npy.Array {
			at := slices.IndexFunc(p.args.DTables, func(t attention.Table) bool { return t.Name == name })
			return &npy.Array{DType: npy.Float32, Shape: p.in.files["table "+name].Shape, Data: p.args.DTables[at].Host}
		}})
	}
	return nil
}

// tableGradients visits the tables whose gradients have an output, and how many elements they have.
func (in *runInputs) tableGradients(visit func(name string, n uint64)) {
	for _, t := range in.o.outputs {
		name := strings.TrimPrefix(t.flag, "dtable ")
		f := in.files["table "+name]
		visit(name, f.Bytes()/uint64(f.DType.Size()))
	}
}

// used names the modifiers.
func (o *modifierFlags) used() (list []string) {
	for _, x := range [][2]string{{"score-mod", o.score}, {"mask-mod", o.mask}} {
		if x[1] != "" {
			list = append(list, x[0]+" "+x[1])
		}
	}
	return list
}

// files are the files of tables.
func (o *modifierFlags) files() (paths []string) {
	for _, t := range o.tables {
		_, path, _ := strings.Cut(t, "=")
		paths = append(paths, path)
	}
	return paths
}

// openModifiers reads tables and parses the modifiers, which tables of these types and axes.
func (in *runInputs) openModifiers() error {
	o := &in.o.modifierFlags
	var declared []score.Table
	for _, t := range o.tables {
		name, path, ok := strings.Cut(t, "=")
		if !ok {
			return badInputf("--table %s: want name=file", t)
		}
		flag := "table " + name
		f, err := npy.Open(path, slices.Concat(integers, floats)...)
		if err != nil {
			return wrong(flag, "%s: %w", path, err)
		}
		if in.files[flag] != nil {
			_ = f.Close()
			return badInputf("--%s is given twice", flag)
		}
		in.files[flag] = f
		table := attention.Table{Name: name}
		if len(f.Shape) < 1 || copy(table.Dims[:], f.Shape) < len(f.Shape) {
			return wrong(flag, "%d axes, want 1 to %d", len(f.Shape), score.MaxRank)
		}
		if slices.Contains(integers, f.DType) {
			declared = append(declared, score.IntTable(name, len(f.Shape)))
			numbers, err := in.ints(flag)
			if err != nil {
				return err
			}
			for _, x := range numbers {
				table.Host = binary.LittleEndian.AppendUint32(table.Host, uint32(x))
			}
		} else {
			declared = append(declared, score.FloatTable(name, len(f.Shape)))
			array, err := f.Load()
			if err != nil {
				return wrong(flag, "%w", err)
			}
			table.Host = convert(array.Data, fileType(array.DType), attention.F32)
		}
		in.args.Tables = append(in.args.Tables, table)
	}
	for _, x := range []struct {
		flag, text string
		to         *score.Expr
	}{{"score-mod", o.score, &in.config.ScoreMod}, {"mask-mod", o.mask, &in.config.MaskMod}} {
		if x.text == "" {
			continue
		}
		e, err := score.Parse(x.text, declared...)
		if err != nil {
			return wrong(x.flag, "%w", err)
		}
		*x.to = e
	}
	return nil
}
