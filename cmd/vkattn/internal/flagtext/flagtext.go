// Package flagtext rewrites errors of the library for users of the command: it replaces
// the names of Go fields by the names of flags, and puts each error on one line.
package flagtext

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// Names maps the fields of an attention.ShapeError to the words of a command.
type Names map[string]string

// shared has the names that are the same in all commands and that no axis of package bench has.
var shared = Names{
	"Tier": "--tier", "Access": "access", "Kernel": "--cuda-kernel",
	"Blocks.BlockQ": "rows of --block-size", "Blocks.BlockK": "keys of --block-size",
	"Tables": "--table", "DTables": "gradient of a table", "BlockMap": "map of tiles", "Memory": "memory of the device", "LSE.Strides": "layout of LSE", "Buffer": "device buffer", "Host": "host",
	"Strides": "layout", "Offset": "start", "Seq": "rows", "Head": "heads", "Batch": "batch",
}

// Name names a field by its flag, in all commands. Package bench does so when a program begins, for its axes.
func Name(field, flag string) { Run[field], Sweep[field] = "--"+flag, "--"+flag }

// with are the shared names and more.
func (n Names) with(more Names) Names {
	out := maps.Clone(n)
	maps.Copy(out, more)
	return out
}

// parts name what fields of a tensor or of tables are: Bias.Heads is "heads of --bias".
var parts = Names{"DType": "type", "Batches": "batch", "Heads": "heads", "Rows": "rows", "Total": "tokens"}

// Run has the names in `vkattn run`, where sizes come from files.
var Run = shared.with(Names{
	"Tuning": "--tuning", "HeadDim/HeadDimV": "head dims of --q and --v", "HeadDim": "head dim of --q",
	"HeadDimV": "head dim of --v", "KVBlock": "--kv-block", "Scale": "--scale", "B": "batch of --q",
	"Hq": "heads of --q", "Hkv": "heads of --k", "Sq": "rows of --q", "Sk": "keys of --k",
	"CuQ": "--cu-seqlens-q", "CuK": "--cu-seqlens-k", "UsedQ": "--seqused-q", "UsedK": "--seqused-k",
	"Varlen.TotalQ": "rows of --q", "Varlen.TotalK": "rows of --k", "Varlen": "--seqused-q and --seqused-k",
	"Pages.Table": "--block-table", "Pages.PageSize": "page size of --k", "Pages.Count": "pages of --k",
	"Pages.Stride": "columns of --block-table", "Pages.Count*PageSize": "keys of all pages of --k",
	"Pages": "--block-table", "PageSize": "page size", "SparseTokens.Offsets": "--sparse-offsets",
	"SparseTokens.Tokens": "--sparse-tokens", "SparseTokens.TopK": "last axis of --sparse-tokens",
	"SparseTokens": "--sparse-tokens", "Blocks.Map": "--block-mask", "Blocks": "--block-mask", "Bias": "--bias",
	"DTables": "--dtable", "Mask": "--mask", "KScale": "--k-scale", "VScale": "--v-scale",
})

// Sweep has the names in bench, verify and tune, where sizes come from lists.
var Sweep = shared.with(Names{
	"Tuning": "tuning", "HeadDim/HeadDimV": "--headdim/--headdim-v", "HeadDim": "--headdim", "HeadDimV": "--headdim-v",
	"KVBlock": "--kv-block", "Scale": "scale", "B": "--batch-size", "Hq": "--nheads", "Hkv": "--nheads-kv",
	"Sq": "--seqlen", "Sk": "--seqlen-k", "CuQ": "--varlen", "CuK": "--varlen", "UsedQ": "--varlen",
	"UsedK": "--varlen", "Varlen.TotalQ": "rows of --varlen", "Varlen.TotalK": "keys of --varlen", "Varlen": "--varlen",
	"Pages.Table": "--page-size", "Pages.PageSize": "--page-size", "Pages.Count": "pages",
	"Pages.Stride": "pages of a sequence", "Pages.Count*PageSize": "keys of all pages", "Pages": "--page-size",
	"PageSize": "--page-size", "SparseTokens.Offsets": "--sparse-ratio", "SparseTokens.Tokens": "--sparse-ratio", "SparseTokens.TopK": "--sparse-topk",
	"SparseTokens": "--sparse-ratio", "Blocks.Map": "--block-ratio", "Blocks": "--block-ratio", "Bias": "the bias",
	"Mask": "the mask", "KScale": "scales of K", "VScale": "scales of V", "Variant": "--variant", "Ablate": "--ablate",
})

// name is the name of a field, or of a product, part or element of fields: "B*Hq*Sq",
// "Bias.Heads", "CuQ[2]".
func (n Names) name(field string) string {
	if name, ok := n[field]; ok {
		return name
	}
	if fields, index, ok := strings.Cut(field, "["); ok {
		return n.name(fields) + "[" + index
	}
	if i := strings.LastIndex(field, "*"); i >= 0 {
		return n.name(field[:i]) + "*" + n.name(field[i+1:])
	}
	i := strings.LastIndex(field, ".")
	if i < 0 {
		return field
	}
	whole, part := field[:i], field[i+1:]
	switch word, ok := parts[part]; {
	case ok:
		return word + " of " + n.name(whole)
	case whole == "Varlen":
		return n.name(part)
	}
	return n.name(whole) + "." + n.name(part)
}

// value is the text of what a field is or should be.
func (n Names) value(v any) string {
	if p, ok := v.(problem.Phrase); ok {
		return p.With(n.name)
	}
	return fmt.Sprint(v)
}

// Text is the text of an error, with the names of flags in its ShapeError.
func (n Names) Text(err error) string {
	text := err.Error()
	var shape *attention.ShapeError
	if errors.As(err, &shape) {
		named := fmt.Sprintf("%s is %s, want %s", n.name(shape.Field), n.value(shape.Got), n.value(shape.Want))
		text = strings.ReplaceAll(text, shape.Error(), named)
		text = strings.ReplaceAll(text, strings.TrimPrefix(shape.Error(), "attention: "), named) // behind another prefix
	}
	return text
}

// Error wraps err with its Text. It returns nil for nil.
func (n Names) Error(err error) error {
	if err == nil {
		return nil
	}
	return &named{n.Text(err), err}
}

// OneLine joins the lines of an error's text and drops the names of this module's
// packages from the beginnings of the errors in it.
func OneLine(text string) string {
	var parts []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line != "" {
			parts = append(parts, line)
		}
	}
	text = strings.Join(parts, "; ")
	for _, prefix := range []string{"attention: ", "parallel: ", "processes: ", "control: ", "vk: ", "cudapath: "} {
		text = strings.ReplaceAll(text, ": "+prefix, ": ")
		text = strings.TrimPrefix(text, prefix)
	}
	// An error may wrap one that matches the same sentinel.
	return strings.ReplaceAll(text, "unsupported: unsupported: ", "unsupported: ")
}

type named struct {
	text string
	err  error
}

func (e *named) Error() string { return e.text }
func (e *named) Unwrap() error { return e.err }

// Count is a number with its noun: "1 row", "2 rows".
func Count[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Texts are the texts of a list, as fmt.Sprint has them.
func Texts[T any](list []T) []string {
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = fmt.Sprint(x)
	}
	return out
}

// Find finds the entry of a list with a name. An error says what such an entry is, and offers those that are close to
// the name, or all of them; others too, which the caller has elsewhere.
func Find[T any](what, name string, list []T, others ...string) (x T, err error) {
	names := Texts(list)
	if i := slices.Index(names, name); i >= 0 {
		return list[i], nil
	}
	names = append(names, others...)
	return x, fmt.Errorf("unknown %s %q%s", what, name, cmp.Or(Close(name, names), ", want one of "+strings.Join(names, ", ")))
}

// Close is the end of an error about an unknown name: the names that are close to it, if there are any.
func Close(name string, names []string) string {
	// cobra compares names of commands.
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	if name == "" {
		return ""
	}
	list := all.SuggestionsFor(name)
	if len(list) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(list, " or ") + "?"
}
